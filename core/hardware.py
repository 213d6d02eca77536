"""What a device's data sheet says: memory, bandwidth, arithmetic, links."""

from dataclasses import dataclass

from core.errors import InputError


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device. Rates are peaks for dense arithmetic, without sparsity; a cost model scales them by its MFU and MBU.

    `memory_bytes` is what the driver shows as total, `nominal_memory_bytes` what the name says. Rates of links count
    one direction for the host link, both together for the interconnect; None where the device has none.
    Raises InputError for a rate or a size that is not positive.
    """

    name: str
    memory_bytes: int
    nominal_memory_bytes: int
    hbm_bytes_per_s: float
    bf16_flops: float
    host_link_bytes_per_s: float
    fp8_flops: float | None = None
    interconnect_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        required = {
            "memory_bytes": self.memory_bytes,
            "nominal_memory_bytes": self.nominal_memory_bytes,
            "hbm_bytes_per_s": self.hbm_bytes_per_s,
            "bf16_flops": self.bf16_flops,
            "host_link_bytes_per_s": self.host_link_bytes_per_s,
        }
        for key, value in required.items():
            if value <= 0:
                raise InputError(f"hardware {self.name}: {key}={value}, expected more than 0")

    @property
    def ridge_flop_per_byte(self) -> float:
        """Arithmetic intensity above which bf16 work is bound by arithmetic, below by memory bandwidth."""
        return self.bf16_flops / self.hbm_bytes_per_s
