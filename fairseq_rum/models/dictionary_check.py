"""A checkpoint refuses a dictionary that it was not trained with."""

from __future__ import annotations

import hashlib
from typing import Any, Dict

import torch
from fairseq.data import Dictionary
from torch import nn

from fairseq_rum.errors import InputError


class DictionaryCheck(nn.Module):
    """Keeps a fingerprint of a dictionary in the checkpoint and compares it when loading.

    Two dictionaries of one size load without complaint otherwise, and every symbol means another.

    Args:
        dictionary: of the model; symbols and their order count, frequencies do not.

    Raises:
        InputError: (when a checkpoint is loaded) it was trained with another dictionary.
    """

    def __init__(self, dictionary: Dictionary) -> None:
        super().__init__()
        digest = hashlib.blake2b("\n".join(dictionary.symbols).encode(), digest_size=8).digest()
        self.register_buffer(
            "fingerprint",
            torch.tensor([len(dictionary), int.from_bytes(digest, "little", signed=True)]),
        )

    def upgrade_state_dict_named(self, state_dict: Dict[str, Any], name: str) -> None:
        """fairseq calls this on every module before it loads a checkpoint; ``name`` is this one."""
        saved = state_dict.get(f"{name}.fingerprint")
        if saved is not None and not torch.equal(saved.cpu(), self.fingerprint.cpu()):
            raise InputError(
                f"the checkpoint was trained with another dictionary ({int(saved[0])} symbols) "
                f"than the dict.txt of this data directory ({int(self.fingerprint[0])} symbols)"
            )
