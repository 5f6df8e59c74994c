"""When a backup begins, and when training waits for one."""


class BackupSchedule:
    """Begins backups so early that each is whole before a kill would cost more than ``save_freq`` steps.

    That is twice the steps that training made while the last one was written; half of ``save_freq`` while
    this is not known. All times are training steps; the training begins, or goes on, at ``now``.
    """

    def __init__(self, save_freq, now):
        self._save_freq = save_freq
        self._begun = self._whole = now
        self._steps_of_writing = save_freq
        self._is_writing = False

    def is_due(self, now):
        early = min(2 * self._steps_of_writing, self._save_freq // 2)
        return now - self._begun >= self._save_freq - early

    def begin(self, now):
        self._begun, self._is_writing = now, True

    def end(self, now, whole):
        """No backup is being written. The last whole one is of step ``whole``, None if there is none."""
        if self._is_writing:
            self._steps_of_writing, self._is_writing = now - self._begun, False
        self._whole = self._whole if whole is None else whole

    def has_to_wait(self, now):
        """Whether a kill from now on would cost too much."""
        return now - self._whole >= self._save_freq
