"""An fp32 ONNX graph to int8, in place: weight matrices to ONNX Runtime's dynamic int8 product, the token table to int8 rows that the head shares."""

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from stages.quantization.counts import Counts
from stages.quantization.rows import Int8Rows, quantize_rows

DOMAIN = "com.microsoft"  # ONNX Runtime's own operators
ZERO = 128  # weights lie in the file as unsigned bytes around it: signed ones saturate on x86 processors without VNNI


def rewrite(model: ir.Model, *, vocab_size: int, parameters: int) -> Counts:
    """Quantize every product with a constant matrix, and every table of `vocab_size` rows, in `model`, a graph with `parameters` weights, in place.

    Activations are quantized while the model runs, one scale for each product's whole input (DynamicQuantizeMatMul of ONNX Runtime).
    """
    graph, tables = model.graph, _Tables(model.graph)
    layers = embeddings = 0
    for node in list(graph):
        if node.op_type in ("MatMul", "Gemm") and (source := _constant_matrix(node)):
            _product(graph, node, *source, tables)
            layers += 1
        elif node.op_type == "Gather" and _is_token_table(node.inputs[0], vocab_size):
            _lookup(graph, node, tables)
            embeddings += 1
    _drop_unused(graph)
    model.opset_imports[DOMAIN] = 1
    return Counts(layers, embeddings, tables.quantized, parameters)


class _Tables:
    """The int8 form of each initializer, made once however often it is used: a tied table stays one table."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph, self.quantized = graph, 0
        self._made: dict[tuple[str, bool], tuple[ir.Value, ir.Value, int]] = {}

    def rows(self, source: ir.Value, *, transposed: bool) -> tuple[ir.Value, ir.Value, int]:
        """uint8 values, float32 scales and the number of output channels of `source`, a matrix of (in, out) where `transposed`, else (out, in)."""
        key = (str(source.name), transposed)
        if key not in self._made:
            weight = _array(source)
            self.quantized += weight.size
            self._made[key] = self._store(key[0], quantize_rows(np.ascontiguousarray(weight.T if transposed else weight)), transposed)
        return self._made[key]

    def _store(self, name: str, rows: Int8Rows, transposed: bool) -> tuple[ir.Value, ir.Value, int]:
        unsigned = (rows.values.astype(np.int16) + ZERO).astype(np.uint8)
        stored = np.ascontiguousarray(unsigned.T) if transposed else unsigned
        return self.constant(f"{name}.int8", stored), self.constant(f"{name}.scale", rows.scales), len(rows.scales)

    def constant(self, name: str, array: npt.NDArray[np.generic]) -> ir.Value:
        """An initializer; one of that name and content may be there already."""
        if name in self.graph.initializers:
            return self.graph.initializers[name]
        tensor = ir.Tensor(array, name=name)
        value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
        self.graph.register_initializer(value)
        return value


def _constant_matrix(node: ir.Node) -> tuple[ir.Value, bool] | None:
    """The fp32 matrix that `node` multiplies with, and whether it is stored as (in, out); None for a product of two activations."""
    weight = node.inputs[1]
    if weight is None or (node.op_type == "Gemm" and not _is_linear(node)):
        return None
    flipped = node.op_type == "Gemm" and bool(node.attributes.get_int("transB", 0))
    producer = weight.producer()
    if producer is not None and producer.op_type == "Transpose" and producer.inputs[0] is not None:
        weight, flipped = producer.inputs[0], not flipped
    is_matrix = _is_float(weight) and weight.shape is not None and len(weight.shape) == 2
    return (weight, not flipped) if is_matrix else None


def _is_linear(node: ir.Node) -> bool:
    """Whether a Gemm is a plain x W + b."""
    attributes = node.attributes
    return not attributes.get_int("transA", 0) and attributes.get_float("alpha", 1.0) == 1.0 and attributes.get_float("beta", 1.0) == 1.0


def _product(graph: ir.Graph, node: ir.Node, source: ir.Value, transposed: bool, tables: _Tables) -> None:
    """Put the int8 product in `node`'s place, with the bias that is added to it; a table stored by rows is turned when the model is loaded."""
    weight, scale, outputs = tables.rows(source, transposed=transposed)
    if not transposed:
        turned = ir.node("Transpose", [weight], attributes={"perm": [1, 0]})
        graph.insert_before(node, turned)
        weight = turned.outputs[0]
    zero = tables.constant(f"zero.{outputs}", np.full(outputs, ZERO, np.uint8))
    bias = node.inputs[2] if node.op_type == "Gemm" and len(node.inputs) > 2 else None
    product = ir.node("DynamicQuantizeMatMul", [node.inputs[0], weight, scale, zero, *([bias] if bias else [])], domain=DOMAIN)
    _replace(graph, node, [product])


def _lookup(graph: ir.Graph, node: ir.Node, tables: _Tables) -> None:
    """Put a lookup in the int8 table, then values x scale, in the place of `node`, a Gather of token rows."""
    table, indices = node.inputs[0], node.inputs[1]
    assert table is not None, "checked by _is_token_table"
    values, scales, _ = tables.rows(table, transposed=False)
    rows = ir.node("Gather", [values, indices])  # (batch, sequence, hidden) uint8
    scale = ir.node("Gather", [scales, indices])  # (batch, sequence)
    number = ir.node("Cast", [rows.outputs[0]], attributes={"to": ir.DataType.FLOAT.value})
    centred = ir.node("Sub", [number.outputs[0], tables.constant("zero.float", np.array(ZERO, np.float32))])
    column = ir.node("Unsqueeze", [scale.outputs[0], tables.constant("last_axis", np.array([-1], np.int64))])
    _replace(graph, node, [rows, scale, number, centred, column, ir.node("Mul", [centred.outputs[0], column.outputs[0]])])


def _replace(graph: ir.Graph, node: ir.Node, nodes: list[ir.Node]) -> None:
    """Let the last of `nodes` give what `node` gave, under the same name."""
    old, new = node.outputs[0], nodes[-1].outputs[0]
    new.shape, new.type = old.shape, old.type
    graph.insert_before(node, nodes)
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    old.name, new.name = None, old.name
    graph.remove(node, safe=True)


def _drop_unused(graph: ir.Graph) -> None:
    """Remove what only the replaced nodes used."""
    for node in reversed(list(graph)):
        if node.op_type == "Transpose" and not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
            graph.remove(node, safe=True)
    for name in [name for name, value in graph.initializers.items() if not value.uses() and not value.is_graph_output()]:
        del graph.initializers[name]


def _is_token_table(value: ir.Value | None, vocab_size: int) -> bool:
    return value is not None and _is_float(value) and value.shape is not None and len(value.shape) == 2 and value.shape[0] == vocab_size


def _is_float(value: ir.Value) -> bool:
    return value.is_initializer() and value.const_value is not None and value.const_value.dtype == ir.DataType.FLOAT


def _array(value: ir.Value) -> npt.NDArray[np.float32]:
    assert value.const_value is not None, "initializers have values"
    array: npt.NDArray[np.float32] = value.const_value.numpy()
    return array
