"""What a script says about its training, compared with a backup: is it the same training?"""

import warnings

from tfxc._keras.layers import layers_of
from tfxc._keras.optimizers import steps_variable
from tfxc.resume.state import digest_of, settings_of

_TO_THE_SCRIPT = 10  # frames from a warning to the call of fit
_PARTS = "head", "sampler", "loss", "optimizer"


class Script:
    """The variables, seeds, class names, learning rates and settings with which a script begins."""

    def __init__(self, model, variables, directory):
        self._variables, self._directory = variables, directory
        self._steps = steps_variable(model.optimizer)
        seeds = [getattr(layer, "seed", None) for layer in layers_of(model)]
        parts = model.head, model.sampler, model.classification_loss, model.optimizer
        settings = [{} if own is None else settings_of(own) for own in parts]
        rates = [own for name, own in variables.items() if name.startswith("learning_rate")]
        self.notes = {
            "seeds": [seed for seed in seeds if isinstance(seed, int)],
            "class_names": digest_of(None if model.vocabulary is not None else model.class_names),
            "learning_rates": [float(rate.numpy()) for rate in rates],
            "settings": dict(zip(_PARTS, settings, strict=True)),
        }

    def compare(self, arrays, notes):
        """Raises ValueError for a backup of another model, naming what differs; warns about other options."""
        names = notes["class_names"]  # None for a model without names
        if None not in (names, self.notes["class_names"]) and names != self.notes["class_names"]:
            raise ValueError(
                f"The backup in {self._directory} is of another model: it has other class names, or the same "
                "in another order. After change_classes delete it, or name another directory."
            )
        self._require_same_variables(arrays)
        if notes["seeds"] != self.notes["seeds"]:
            raise ValueError(
                f"The model has the seeds {self.notes['seeds']}, but its backup in {self._directory} has "
                f"{notes['seeds']}: call keras.utils.set_random_seed before the model is built. For this "
                "backup, give its sampler and head those seeds as seed=."
            )
        self._warn_of_other_rates(notes["learning_rates"])
        self._warn_of_other_settings(notes["settings"])

    def _require_same_variables(self, arrays):
        saved = {name: array for name, array in arrays.items() if not name.startswith("value ")}
        names = {*saved, *self._variables}
        # Layers make some metrics when they are first used.
        names -= {name for name in saved.keys() ^ self._variables.keys() if name.startswith("metric ")}
        for name in sorted(names):
            own, kept = self._variables.get(name), saved.get(name)
            if own is None or kept is None or tuple(own.shape) != kept.shape or own.dtype != kept.dtype:
                own = "nothing" if own is None else f"{own.name} {own.dtype.name} {tuple(own.shape)}"
                kept = "nothing" if kept is None else f"{kept.dtype} {kept.shape}"
                raise ValueError(
                    f"The backup in {self._directory} is of another model: as {name} it holds {kept}, the "
                    f"model {own}. Delete it, or name another directory."
                )

    def _warn_of_other_rates(self, began):
        # A model that has made steps may have another rate for that reason, as where a cell runs again.
        own = self.notes["learning_rates"]
        if began != own and int(self._steps.numpy()) == 0:
            own, before = (", ".join(f"{rate:.6g}" for rate in rates) for rates in (own, began))
            warnings.warn(
                f"The script names the learning rate {own}, but the training in {self._directory} began with "
                f"{before}, and goes on with the rate of its backup. Set another by a callback, as "
                "keras.callbacks.LearningRateScheduler, from the next epoch on, or name another directory.",
                stacklevel=_TO_THE_SCRIPT,
            )
        self.notes["learning_rates"] = began

    def _warn_of_other_settings(self, began):
        settings = self.notes["settings"]
        changed = [
            f"{part} {name}={settings[part].get(name)!r} in place of {began[part].get(name)!r}"
            for part in _PARTS
            for name in {**settings[part], **began[part]}
            if settings[part].get(name) != began[part].get(name)
        ]
        if changed:
            warnings.warn(
                f"The training in {self._directory} goes on as the script says, with {'; '.join(changed)}. "
                "For another training name another directory.",
                stacklevel=_TO_THE_SCRIPT,
            )

    def require_nothing_undone(self, arrays, notes, is_finished):
        """Refuses, or warns, where the model has gone through the training of the backup already."""
        name = next(name for name, variable in self._variables.items() if variable is self._steps)
        own, saved = int(self._steps.numpy()), int(arrays[name])
        if own > saved and (is_finished or notes["has_ended"]):
            raise ValueError(
                f"The training in {self._directory} is finished, at step {saved}, and this model is at step "
                f"{own}: fit would undo what it learnt since. Name another folder, or delete this one."
            )
        if own > saved:  # as where an interrupted cell of a notebook runs again
            text = f"This model is at step {own}, and goes back to the backup in {self._directory}, of step "
            text += f"{saved}, where an interrupted training goes on."
        elif is_finished:
            what = "this model is what came of it" if own == saved else "its model is restored"
            text = f"The training in {self._directory} is finished, at step {saved}, and {what}: fit has "
            text += "nothing left to do."
        else:
            return
        warnings.warn(f"{text} For another training name another folder.", stacklevel=_TO_THE_SCRIPT - 1)
