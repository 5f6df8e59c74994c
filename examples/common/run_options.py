"""The options that a run was made with, kept beside its files."""

import json
import os


def check_options(folder, options, of_no_run):
    """Keeps the options of a run in its folder, or compares them with those that are there.

    Or else the figures of a run would pass for those of other options.

    Args:
        folder: of the run; it is made if it is not there.
        options: the command line as a dict.
        of_no_run: names of options that may differ.

    Raises:
        SystemExit: if the run in the folder was made with other options.
    """
    given = {name: str(value) for name, value in options.items() if name not in of_no_run}
    path = os.path.join(folder, "options.json")
    if not os.path.exists(path):  # no epoch is done
        os.makedirs(folder, exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(given, file, indent=1)
        return
    with open(path, encoding="utf-8") as file:
        kept = json.load(file)
    other = [
        f"--{name.replace('_', '-')} {kept[name]}, not {value}"
        for name, value in given.items()
        if kept.get(name, value) != value
    ]
    if other:
        raise SystemExit(
            f"{folder} holds a run that was made with {'; '.join(other)}: give the same options "
            "or another --output, or delete that folder."
        )
