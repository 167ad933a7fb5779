"""The error of a user's input."""


class InputError(ValueError):
    """Bad input by the user; the text is one sentence that names the option, file or line."""
