"""What models with named architectures share; it registers nothing by itself."""

from argparse import ArgumentParser
from typing import Any, ClassVar, Type

from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass


class NamedArchitectures:
    """Mix-in for a model of which subclasses without a body are registered under other defaults.

    Attributes:
        base_config: the options of the model, with its own defaults.
    """

    base_config: ClassVar[Type[FairseqDataclass]]

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """The flags of the model, which mean the same for every architecture.

        With its own defaults, fairseq would let the flag of a switch that is on turn it off.
        """
        gen_parser_from_dataclass(parser, cls.base_config(), delete_default=True)

    @classmethod
    def preset(cls) -> Any:
        """The defaults of the architecture."""
        return getattr(cls, "__dataclass")()  # noqa: B009, a name of fairseq's
