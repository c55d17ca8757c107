"""How much of a model became int8."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counts:
    """Linear layers and embedding tables that were quantized, and how many of the model's parameters they hold; a tied table counts once."""

    layers: int
    tables: int
    quantized_parameters: int
    parameters: int

    @property
    def share(self) -> float:
        """The quantized part of all parameters, 0 to 1."""
        return self.quantized_parameters / self.parameters
