"""The command ``fairseq-rum``: one module for each subcommand, put together in ``main``."""
