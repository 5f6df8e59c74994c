"""One example's runs over several seeds, as rows of a table: mean and deviation."""

import statistics


def run_seeds(example, arguments, seeds):
    """Runs ``example.run(arguments)`` once a seed, each into a folder of its own.

    Returns:
        By name of a run, the list of its results, one a seed.
    """
    folder, results = arguments.output, {}
    for arguments.seed in seeds:
        arguments.output = f"{folder}/seed-{arguments.seed}"
        for name, result in example.run(arguments).items():
            results.setdefault(name, []).append(result)
    return results


def mean(runs, metric):
    return statistics.mean(run[metric] for run in runs)


def spread(runs, metric, form):
    """Mean and, of more than one run, standard deviation, e.g. "0.2274 ± 0.0011"."""
    text = form.format(mean(runs, metric))
    if len(runs) > 1:
        text += " ± " + form.format(statistics.stdev(run[metric] for run in runs))
    return text
