"""What tfxc asks of compiled models beyond Keras's public interface, under either of the two."""

from tfxc._keras.training import LogFreeCallback


def test_a_callback_without_logs_is_not_waited_for():
    callback = LogFreeCallback()
    assert callback.async_safe and callback._supports_tf_logs
