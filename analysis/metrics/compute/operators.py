"""One operator as torch's profiler records it, and the numbers that its record holds.

With `record_shapes` torch writes three lists, one item per argument of the operator: dimensions (`[]` for anything but
a tensor, and for a tensor without dimensions), types (a tensor's element type in C++, "Scalar", "ScalarList",
"TensorList", "GenericList" or "") and values ("" for a tensor, else the value as text: "[1, 1]", "False", "0.").
Source: torch/csrc/profiler/util.cpp, shapesToStr, inputTypes and concreteInputs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

Shape = tuple[int, ...]

_ELEMENT_TYPES = {
    "bool": ("bool", 1),
    "unsigned char": ("uint8", 1),
    "signed char": ("int8", 1),
    "char": ("int8", 1),
    "short": ("int16", 2),
    "short int": ("int16", 2),
    "unsigned short": ("uint16", 2),
    "short unsigned int": ("uint16", 2),
    "int": ("int32", 4),
    "unsigned int": ("uint32", 4),
    "long": ("int64", 8),
    "long int": ("int64", 8),
    "long long": ("int64", 8),
    "__int64": ("int64", 8),
    "unsigned long": ("uint64", 8),
    "long unsigned int": ("uint64", 8),
    "float": ("float32", 4),
    "double": ("float64", 8),
    "c10::Half": ("float16", 2),
    "c10::BFloat16": ("bfloat16", 2),
    "c10::Float8_e5m2": ("float8_e5m2", 1),
    "c10::Float8_e4m3fn": ("float8_e4m3fn", 1),
    "c10::Float8_e5m2fnuz": ("float8_e5m2fnuz", 1),
    "c10::Float8_e4m3fnuz": ("float8_e4m3fnuz", 1),
    "c10::Float8_e8m0fnu": ("float8_e8m0fnu", 1),
    "c10::Float4_e2m1fn_x2": ("float4_e2m1fn_x2", 1),
    "c10::complex<c10::Half>": ("complex32", 4),
    "c10::complex<float>": ("complex64", 8),
    "c10::complex<double>": ("complex128", 16),
    "c10::qint8": ("qint8", 1),
    "c10::quint8": ("quint8", 1),
    "c10::qint32": ("qint32", 4),
}
"""dtype and bytes of an element, by its type in C++ as gcc, clang and msvc spell it."""

ITEM_BYTES = dict(_ELEMENT_TYPES.values())
"""Bytes of an element, by dtype."""

_NUMBERED = {
    0: "uint8",
    1: "int8",
    2: "int16",
    3: "int32",
    4: "int64",
    5: "float16",
    6: "float32",
    7: "float64",
    11: "bool",
    15: "bfloat16",
    23: "float8_e5m2",
    24: "float8_e4m3fn",
    25: "float8_e5m2fnuz",
    26: "float8_e4m3fnuz",
    44: "float8_e8m0fnu",
    45: "float4_e2m1fn_x2",
}
"""dtypes by the number that stands for them among values. Source: torch/headeronly/core/ScalarType.h."""


# at::native::(anonymous namespace)::CatArrayBatchedCopy_vectorized<...OpaqueType<2u>, ...>, in older releases the type
# itself; at::native::...multi_tensor_apply_kernel<...TensorListMetadata<2>, ...BinaryOpListAlphaFunctor<float, 2, ...>.
# Source: torch 2.13, aten/src/ATen/native/cuda/Shape.cu, ForeachFunctors.cuh, fused_adam_utils.cuh, FusedSgdKernel.cu.
_LIST_KERNEL = re.compile(
    r"at::native::.*?(?:CatArrayBatchedCopy\w*<|multi_tensor_apply_kernel<.*?Functor<)(?:[\w:<>() ]*?OpaqueType<"
    r"(?:\(unsigned int\))?(?P<bytes>\d+)u?>|(?P<type>c10::complex<[\w:]+>|[\w: ]+?)\s*[,>])"
)


def list_item_bytes(kernel: str) -> int | None:
    """Bytes of an element that a kernel of torch takes from lists of tensors, by its name; None for other kernels."""
    found = _LIST_KERNEL.search(kernel)
    if found is None:
        return None
    return int(found["bytes"]) if found["bytes"] else _ELEMENT_TYPES.get(found["type"], (None, None))[1]


class NotRecorded(Exception):
    """What is asked for is not in the record; the text says what is missing. Caught here: callers see an Amount."""


class Amount(NamedTuple):
    """A number of operations or bytes; None where the trace does not say it, with the reason."""

    value: int | None
    reason: str = ""


class Tensor(NamedTuple):
    """One tensor among the inputs."""

    shape: Shape
    dtype: str

    @property
    def size_bytes(self) -> int:
        """Bytes of its elements, each once."""
        return size_bytes(self.shape, self.dtype)


def size_bytes(shape: Shape, dtype: str) -> int:
    """Bytes of a tensor of this shape, each element once."""
    return prod(shape) * ITEM_BYTES[dtype]


@dataclass(frozen=True)
class ProfiledOperator:
    """Name and arguments of one operator; a list is None where the profiler did not record it."""

    name: str
    dims: Sequence[Any] | None = None
    types: Sequence[str] | None = None
    values: Sequence[str] | None = None
    list_item_bytes: int | None = None
    """Bytes of an element in the lists of tensors, if the kernels said it: their types are not recorded."""

    def shape(self, place: int, what: str, *, ndim: int | None = None) -> Shape:
        """Dimensions of the tensor at `place`. Raises NotRecorded, also if it has not `ndim` of them."""
        found = _item(self.dims, place, f"dimensions of {what}")
        if not isinstance(found, list | tuple) or not all(type(size) is int for size in found):
            raise NotRecorded(f"{what} is not one tensor")
        if any(size < 0 for size in found):
            raise NotRecorded(f"{what} has a negative dimension")
        if ndim is not None and len(found) != ndim:
            raise NotRecorded(f"{what} has {len(found)} dimensions instead of {ndim}")
        return tuple(found)

    def dtype(self, place: int, what: str) -> str:
        """The dtype of the tensor at `place`. Raises NotRecorded."""
        found = _item(self.types, place, f"type of {what}")
        if found not in _ELEMENT_TYPES:
            raise NotRecorded(f"{what} has the type {found!r}, which is not that of a tensor")
        return _ELEMENT_TYPES[found][0]

    def tensor(self, place: int, what: str) -> Tensor:
        """The tensor at `place`. Raises NotRecorded."""
        return Tensor(self.shape(place, what), self.dtype(place, what))

    def has_tensor(self, place: int) -> bool:
        """Whether there is a tensor at `place`; an optional one may be missing."""
        return self.types is not None and place < len(self.types) and self.types[place] in _ELEMENT_TYPES

    def tensors(self, places: int | None = None) -> list[Tensor]:
        """All tensors among the first `places` arguments, or among all. Raises NotRecorded for lists of tensors."""
        for place, kind in enumerate((self.types or ())[:places]):
            if kind in ("TensorList", "GenericList"):
                raise NotRecorded(f"input {place} is a list of tensors, whose types are not recorded")
        return self.tensors_alone(places)

    def tensors_alone(self, places: int | None = None) -> list[Tensor]:
        """The same without those in lists. Raises NotRecorded."""
        if self.types is None or self.dims is None:
            raise NotRecorded("no types or no dimensions of inputs were recorded")
        kinds = self.types[:places]
        return [self.tensor(place, f"input {place}") for place in range(len(kinds)) if self.has_tensor(place)]

    def tensor_list(self, place: int, what: str) -> list[Shape]:
        """Shapes of the tensors in the list at `place`. Raises NotRecorded, also for an empty list.

        torch writes `[]` for a list of more than 30, too (TENSOR_LIST_DISPLAY_LENGTH_LIMIT in
        torch/csrc/profiler/util.h), and older releases for every list.
        """
        found = _item(self.dims, place, f"dimensions of {what}")
        if not isinstance(found, list | tuple) or not found:
            raise NotRecorded(f"shapes of {what} are not recorded, as for every list of more than 30 tensors")
        if not all(
            isinstance(shape, list | tuple) and all(type(n) is int and n >= 0 for n in shape) for shape in found
        ):
            raise NotRecorded(f"{what} are not a list of tensors")
        return [tuple(shape) for shape in found]

    def list_bytes(self, place: int, what: str) -> int:
        """Bytes of the tensors in the list at `place`, all of one type. Raises NotRecorded."""
        shapes = self.tensor_list(place, what)
        if self.list_item_bytes is None:
            raise NotRecorded("the type of the tensors in a list is not recorded, nor does the kernel's name say it")
        return sum(map(prod, shapes)) * self.list_item_bytes

    def value(self, place: int, what: str) -> str:
        """The text of an argument that is no tensor; "" for None. Raises NotRecorded."""
        return str(_item(self.values, place, f"value of {what}"))

    def ints(self, place: int, what: str, length: int) -> Shape:
        """A list of `length` integers; one that holds a single integer stands for equal ones. Raises NotRecorded."""
        found = self.int_list(place, what)
        if len(found) not in (1, length):
            raise NotRecorded(f"{what} has {len(found)} numbers instead of {length}")
        return found * length if len(found) == 1 else found

    def int_list(self, place: int, what: str) -> Shape:
        """A list of integers. Raises NotRecorded."""
        found = _parsed(self.value(place, what), what)
        if not isinstance(found, list) or not all(type(number) is int for number in found):
            raise NotRecorded(f"{what} is not a list of integers")
        return tuple(found)

    def flag(self, place: int, what: str) -> bool:
        """A truth value. Raises NotRecorded."""
        found = _parsed(self.value(place, what), what)
        if not isinstance(found, bool):
            raise NotRecorded(f"{what} is neither True nor False")
        return found

    def flags(self, place: int, what: str, length: int) -> tuple[bool, ...]:
        """A list of `length` truth values. Raises NotRecorded."""
        found = _parsed(self.value(place, what), what)
        if not isinstance(found, list) or len(found) != length or not all(isinstance(flag, bool) for flag in found):
            raise NotRecorded(f"{what} is not a list of {length} truth values")
        return tuple(found)

    def number(self, place: int, what: str) -> int:
        """An integer. Raises NotRecorded."""
        found = _parsed(self.value(place, what), what)
        if type(found) is not int:
            raise NotRecorded(f"{what} is not an integer")
        return found

    def named_dtype(self, place: int, what: str) -> str:
        """The dtype that an argument names by its number. Raises NotRecorded."""
        number = self.number(place, what)
        if number not in _NUMBERED:
            raise NotRecorded(f"{what} is {number}, which stands for no dtype that is known here")
        return _NUMBERED[number]


def evaluated(
    operator: ProfiledOperator, formulas: Mapping[str, Callable[[ProfiledOperator], int]], reasons: Mapping[str, str]
) -> Amount:
    """What the formula of an operator's name gives; `reasons` say why some names have none."""
    formula = formulas.get(operator.name)
    if formula is None:
        return Amount(None, reasons.get(operator.name, f"no formula for {operator.name}"))
    try:
        return Amount(formula(operator))
    except NotRecorded as err:
        return Amount(None, f"{operator.name}: {err}")


def matrix_dtype(operator: ProfiledOperator) -> str | None:
    """The dtype in which an operator computes, for its peak: of the first tensor with two dimensions or more.

    Bias comes first in addmm and has one dimension. Whether float32 runs as TF32 is not in a trace. None if there is
    no such tensor.
    """
    try:
        return next((tensor.dtype for tensor in operator.tensors_alone() if len(tensor.shape) > 1), None)
    except NotRecorded:
        return None


def _item(recorded: Sequence[Any] | None, place: int, what: str) -> Any:
    if recorded is None or place >= len(recorded):
        raise NotRecorded(f"no {what} recorded")
    return recorded[place]


def _parsed(text: str, what: str) -> Any:
    try:
        return json.loads(text.replace("True", "true").replace("False", "false"))
    except json.JSONDecodeError as err:
        raise NotRecorded(f"{what} is not recorded" if text == "" else f"{what} is {text!r}") from err
