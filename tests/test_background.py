import os
import sys
import threading
from unittest import mock

import pytest

from tfxc.background import lower_priority


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own there")
@pytest.mark.parametrize("refused", [False, True])
def test_one_thread_alone_is_of_the_idle_class(monkeypatch, refused):
    found = []
    if refused:  # as a sandbox does
        monkeypatch.setattr(os, "sched_setscheduler", mock.Mock(side_effect=PermissionError))

    def work():
        lower_priority()
        found.append(os.sched_getscheduler(threading.get_native_id()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [os.SCHED_OTHER if refused else os.SCHED_IDLE]
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
