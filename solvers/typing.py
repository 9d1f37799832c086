"""Tensor types with shapes, in jaxtyping's notation.

They cost nothing at run time: jaxtyping is used where it has been imported already (the test suite does so, and checks
every annotation with beartype) and by type checkers; elsewhere each of these names stands for a plain tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING or "jaxtyping" in sys.modules:
    from jaxtyping import Bool as Bool
    from jaxtyping import Float as Float
    from jaxtyping import Int as Int
else:

    class _PlainTensor:
        def __class_getitem__(cls, item: Any) -> type[Tensor]:
            return Tensor

    Bool = Float = Int = _PlainTensor

# A state is any real or complex tensor, or a tuple of them; what is "per system" has the shape [S].
State = Tensor | tuple[Tensor, ...]
PerSystem = Float[Tensor, " S"]
PerSystemBool = Bool[Tensor, " S"]
PerSystemInt = Int[Tensor, " S"]
Field = Callable[..., Any]
