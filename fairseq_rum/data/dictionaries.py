"""Dictionaries read from ``dict.txt``; one that fairseq cannot read, or would misread, is named."""

from __future__ import annotations

from typing import Type, TypeVar

from fairseq.data import Dictionary

from fairseq_rum.errors import InputError

D = TypeVar("D", bound=Dictionary)

_BYTE_ORDER_MARK = "\ufeff"
_LONGEST_REASON = 200


def load_dictionary(path: str, kind: Type[D] = Dictionary) -> D:
    """Read a dictionary file: a symbol and its count on each line.

    Args:
        path: the file, UTF-8 with any line ends.
        kind: the class of the dictionary.

    Raises:
        InputError: it is missing, not UTF-8, begins with a byte order mark (fairseq-preprocess
            takes that for a part of the first symbol), or is malformed.
    """
    dictionary = kind()
    try:
        with open(path, encoding="utf-8") as file:
            if file.read(1) == _BYTE_ORDER_MARK:
                raise InputError(f"{path}: begins with a byte order mark, save it as UTF-8 without")
            file.seek(0)
            dictionary.add_from_file(file)
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except InputError:
        raise
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8") from error
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())  # fairseq quotes the line with its end
        reason = reason.partition(". Duplicate words can")[0]
        raise InputError(f"{path}: {reason[:_LONGEST_REASON]}") from error
    return dictionary
