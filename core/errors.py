"""The one error a user meets: bad input, told in one line."""


class InputError(Exception):
    """Bad input: what is wrong, where (file, line, key), and what would be right, in one line.

    The command prints the message and exits with status 2; it never shows a traceback for it.
    """
