import pytest

from tfxc.resume.schedule import BackupSchedule


@pytest.mark.parametrize("steps_of_writing", [0, 1, 3, 10, 40])
@pytest.mark.parametrize("save_freq", [1, 2, 7, 10])
def test_no_kill_costs_more(save_freq, steps_of_writing):
    schedule, begun, whole, oldest, num_backups = BackupSchedule(save_freq, 0), None, 0, 0, 0
    for now in range(1, 201):
        oldest = max(oldest, now - whole)  # what a kill at the end of this step costs
        if begun is not None and now - begun >= steps_of_writing:
            begun, whole = None, begun
        if begun is None:
            schedule.end(now, whole)
            if schedule.is_due(now):
                schedule.begin(now)
                begun, num_backups = now, num_backups + 1
        if begun is not None and schedule.has_to_wait(now):
            begun, whole = None, begun
    assert oldest <= save_freq
    usual = max(save_freq - 2 * max(steps_of_writing, 1), save_freq - save_freq // 2)
    assert num_backups <= 200 // usual + 2


def test_a_backup_that_failed_is_tried_again_later():
    schedule = BackupSchedule(10, 100)
    assert schedule.is_due(105)
    schedule.begin(105)
    schedule.end(106, whole=None)
    assert schedule.has_to_wait(110)
    assert not schedule.is_due(112) and schedule.is_due(113)
