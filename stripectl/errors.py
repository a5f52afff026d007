"""Errors that the user can act on: the command line prints such an error as one line and exits with its code."""


class StripectlError(Exception):
    """Something the user can act on; the command line prints it as one line and exits with `exit_code`."""

    exit_code = 1


class BadInput(StripectlError):
    """Bad usage, or an input that is missing, unreadable, or newer than this stripectl."""

    exit_code = 2


class Missing(StripectlError):
    """The target or a component is not on this machine; the message says what installs it."""

    exit_code = 3
