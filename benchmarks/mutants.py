"""Mutants of a Python file: copies with one small mistake each, for benchmarks/mutation.py.

Left alone: docstrings, annotations, imports, the text of messages (`raise`, `warn`, f-strings, strings with a
space) and assertions, which are there for the type checker. An assignment is deleted only where the program
would still find a value under its name: otherwise any test would notice.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult},
    **{ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.MatMult: ast.Mult, ast.LShift: ast.RShift},
    **{ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq},
    **{ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In},
}
NEGATED_BY_OPERATOR = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
# Of a tensor or text, x.name(...) may be left out: what remains is of the same kind.
CONVERSIONS = {"clamp", "clone", "copy", "cpu", "detach", "double", "expand", "float", "half", "long"}
CONVERSIONS |= {"log", "mul_", "strip", "to"}
# In another order these give the same, or fail wherever they are called.
UNORDERED = {"equal", "getattr", "hasattr", "isinstance", "issubclass", "max", "min", "transpose", "zip"}
SKIPPED = (ast.Import, ast.ImportFrom, ast.Assert, ast.JoinedStr, ast.expr_context, ast.operator)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
TEXT = {"TypeVar", "warn"}  # what they are called with is text
DISPLAY = {"repr", "strict"}  # keywords of dataclass fields and `zip` that change no result
TYPES = {"int", "float", "str", "tuple", "list"}
Key = tuple[str, str, str]  # of a mutant: module, text of the line, change
Spot = tuple[ast.AST, str, int | None]  # a node's parent, the field it is in, and its place in a list


@dataclass(frozen=True)
class Mutant:
    """One mistake: `spots` get these nodes in place of what is there."""

    module: str
    line: str  # its text
    change: str
    scope: str  # of the function or class around it; "" at the top
    lines: range  # of the statement, or of the head of a compound one
    edits: tuple[tuple[Spot, Any], ...]

    @property
    def key(self) -> Key:
        return self.module, self.line, self.change


class Source:
    """A file, its tree and its mutants."""

    def __init__(self, path: Path, module: str) -> None:
        self.path, self.module = path, module
        text = path.read_text(encoding="utf-8")
        self.rows, self.tree = text.splitlines(), ast.parse(text)
        self.mutants: list[Mutant] = []
        self.changes = Counter[tuple[str, str]]()
        self._walk(self.tree, "", self.tree, set())

    def compile(self, mutant: Mutant | None = None) -> Any:
        """The code of the file, with the mutant's mistake; line numbers stay."""
        before = [(spot, _get(spot)) for spot, _ in mutant.edits] if mutant else []
        try:
            for spot, node in mutant.edits if mutant else ():
                _set(spot, node)
            return compile(ast.fix_missing_locations(self.tree), str(self.path), "exec")
        finally:
            for spot, node in before:
                _set(spot, node)

    def _walk(self, node: ast.AST, scope: str, statement: ast.AST, known: set[str]) -> None:
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "format_spec"):
                continue
            for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if not isinstance(child, ast.AST) or isinstance(child, SKIPPED) or _is_left(child):
                    continue
                inner = child if isinstance(child, ast.stmt) else statement
                self._collect((node, field, index), child, scope, inner, known)
                if isinstance(child, ast.Raise) or _called(child) in TEXT:
                    continue
                if isinstance(child, ast.FunctionDef | ast.ClassDef):
                    names = {each.arg for each in ast.walk(child) if isinstance(each, ast.arg)}
                    self._walk(child, f"{scope}.{child.name}".lstrip("."), child, names)
                else:
                    self._walk(child, scope, inner, known)
                known |= {each.id for each in _stored(child)}

    def _collect(self, spot: Spot, node: ast.AST, scope: str, statement: ast.AST, known: set[str]) -> None:
        changes = [(old, new, [((node, *place), new_node)]) for place, old, new, new_node in _inside(node)]
        for new in _instead(spot, node, scope, known):
            changes.append((_write(node), _write(new), [(spot, new)]))
        for old, new, edits in changes:
            line = self.rows[getattr(node, "lineno", _lines(statement)[0]) - 1].strip()
            change = (
                f"{old} -> {new}" if isinstance(node, ast.expr | ast.FunctionDef | ast.AugAssign) else new
            )
            self.changes[line, change] += 1
            same = self.changes[line, change]
            change += f" #{same}" if same > 1 else ""
            self.mutants.append(Mutant(self.module, line, change, scope, _lines(statement), tuple(edits)))


def _inside(node: ast.AST) -> Iterator[tuple[tuple[str, int | None], str, str, Any]]:
    """Changes of a part of a node that is no expression: (field, index), old and new text, new value."""
    if isinstance(node, ast.Compare):
        for index, op in enumerate(node.ops):
            new = OPERATORS[type(op)]()
            yield ("ops", index), _write(node), _write(_with(node, "ops", index, new)), new
    if isinstance(node, ast.BoolOp) or (isinstance(node, ast.BinOp | ast.AugAssign) and not _is_type(node)):
        new = OPERATORS[type(node.op)]()
        yield ("op", None), _write(node), _write(_with(node, "op", None, new)), new
    for index, decorator in enumerate(node.decorator_list) if isinstance(node, ast.FunctionDef) else ():
        if _write(decorator) not in ("property", "staticmethod", "classmethod"):
            rest = [*node.decorator_list[:index], *node.decorator_list[index + 1 :]]
            yield ("decorator_list", None), f"@{_write(decorator)}", "left out", rest
    if isinstance(node, ast.Call) and _called(node) not in TEXT:
        for index, keyword in enumerate(node.keywords):
            if keyword.arg not in (None, *DISPLAY):
                rest = [*node.keywords[:index], *node.keywords[index + 1 :]]
                yield ("keywords", None), _write(node), _write(_with(node, "keywords", None, rest)), rest
        plain = not any(isinstance(each, ast.Starred) for each in node.args)
        if len(node.args) >= 2 and plain and _called(node) not in UNORDERED:
            swapped = [node.args[1], node.args[0], *node.args[2:]]
            yield ("args", None), _write(node), _write(_with(node, "args", None, swapped)), swapped
    if isinstance(node, ast.Slice):
        for field in ("lower", "upper", "step"):
            if getattr(node, field) is not None:
                yield (field, None), f"[{_write(node)}]", f"[{_write(_with(node, field, None, None))}]", None


def _instead(spot: Spot, node: ast.AST, scope: str, known: set[str]) -> Iterator[ast.AST]:
    """Nodes to put in a node's place."""
    parent, field, _ = spot
    if isinstance(node, ast.BoolOp):
        for index in range(len(node.values)):
            rest = [*node.values[:index], *node.values[index + 1 :]]
            yield ast.BoolOp(node.op, rest) if len(rest) > 1 else rest[0]
    if isinstance(node, ast.UnaryOp) and not (isinstance(node.op, ast.USub) and _is_zero(node.operand)):
        yield node.operand
    if isinstance(node, ast.Constant) and not isinstance(node.value, str | bytes | None):
        whole = not isinstance(node.value, bool) and node.value is not ...
        yield ast.Constant(node.value + 1 if whole else not node.value)
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
        yield ast.Constant(f"X{node.value}")
    if isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield ast.Return(ast.Constant(None))
    called = _called(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and called in CONVERSIONS:
        yield node.func.value
    tested = isinstance(parent, ast.If | ast.IfExp | ast.While) and field == "test"
    if tested or (isinstance(parent, ast.comprehension) and field == "ifs"):
        single = isinstance(node, ast.Compare) and len(node.ops) == 1
        if not (single and isinstance(node.ops[0], NEGATED_BY_OPERATOR)) and not isinstance(
            node, ast.UnaryOp
        ):
            yield ast.UnaryOp(ast.Not(), node)  # type: ignore[arg-type]
    if isinstance(node, ast.Raise | ast.AugAssign | ast.Break | ast.Continue | ast.Delete):
        yield ast.Pass()
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield ast.Pass()
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        in_class = isinstance(parent, ast.ClassDef)
        names = {each.id for each in _stored(node)}
        if in_class or (scope and names <= known):
            yield ast.Pass()


def _stored(node: ast.AST) -> list[ast.Name]:
    found = (each for each in ast.walk(node) if isinstance(each, ast.Name))
    return [each for each in found if isinstance(each.ctx, ast.Store)]


def _lines(statement: ast.AST) -> range:
    """Of a statement; of one with a body, the lines before it."""
    first, last = getattr(statement, "lineno", 1), getattr(statement, "end_lineno", None) or 1
    body = getattr(statement, "body", None)
    if isinstance(body, list) and body:
        last = max(first, body[0].lineno - 1)
    return range(first, last + 1)


def _called(node: ast.AST) -> str:
    """The last name of what is called here: `warn` of `warnings.warn(...)`."""
    node = node.value if isinstance(node, ast.Expr) else node
    func = node.func if isinstance(node, ast.Call) else None
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def _is_left(node: ast.AST) -> bool:
    """Whether this is a docstring, a list of public names, an overload without a body, or such a keyword."""
    if isinstance(node, ast.keyword):
        return node.arg in DISPLAY
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Assign):
        return _write(node.targets[0]) == "__all__"
    return isinstance(node, ast.FunctionDef) and "overload" in map(_write, node.decorator_list)


def _is_type(node: ast.AST) -> bool:
    """Whether this is a union of types, as in isinstance(x, int | float)."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.BitOr):
        return False
    sides = (_write(each).rpartition(".")[2] for each in (node.left, node.right))
    return any(
        side in ("int", "float", "str", "tuple", "list", "None") or side[:1].isupper() for side in sides
    )


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_zero(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0


def _write(node: ast.AST) -> str:
    """The text of a node, on one line; of one with a body, its first line."""
    return "left out" if isinstance(node, ast.Pass) else ast.unparse(node).partition("\n")[0]


def _with(node: ast.AST, field: str, index: int | None, new: Any) -> ast.AST:
    """A copy of a node with another value in a field."""
    values = dict(ast.iter_fields(node))
    if index is not None:
        new = [*values[field][:index], new, *values[field][index + 1 :]]
    return type(node)(**{**values, field: new})


def _get(spot: Spot) -> Any:
    node, field, index = spot
    return getattr(node, field) if index is None else getattr(node, field)[index]


def _set(spot: Spot, value: Any) -> None:
    node, field, index = spot
    if index is None:
        setattr(node, field, value)
    else:
        getattr(node, field)[index] = value


def roots(module: CodeType) -> dict[tuple[str, int], CodeType | None]:
    """The code of functions that are in no other function, by name and line; None if there are two there."""
    found: dict[tuple[str, int], CodeType | None] = {}
    for code in _inner(module):
        own = {(code.co_qualname, code.co_firstlineno): code}
        for key, each in (own if code.co_flags & 1 else roots(code)).items():  # 1: optimised, a function
            found[key] = None if key in found else each
    return found


def _inner(code: CodeType) -> list[CodeType]:
    return [each for each in code.co_consts if isinstance(each, CodeType)]


def lines_of(code: CodeType | None) -> set[int]:
    """The lines of a function's code and of what is inside it."""
    if code is None:
        return set()
    own = {line for _, _, line in code.co_lines() if line is not None and line != code.co_firstlineno}
    return own.union(*map(lines_of, _inner(code)))


def changed_functions(source: Source, mutant: Mutant) -> list[tuple[tuple[str, int], CodeType]] | None:
    """The functions whose code differs, if nothing else does; None if the module must be imported anew."""
    before, after = source.compile(), source.compile(mutant)
    if before == after:
        raise ValueError(f"a mutant that changes nothing: {mutant.key}")
    if _skeleton(before) != _skeleton(after):
        return None
    old, new = roots(before), roots(after)
    changed = [(key, code) for key, code in new.items() if code != old[key]]
    for key, code in changed:
        was = old[key]
        if code is None or was is None or code.co_freevars != was.co_freevars:
            return None
    return changed  # type: ignore[return-value]


def _skeleton(code: CodeType) -> Any:
    """What runs at import: the code of a module and its classes, without that of functions."""
    consts = []
    for each in code.co_consts:
        function = isinstance(each, CodeType) and each.co_flags & 1
        body = _skeleton(each) if isinstance(each, CodeType) and not function else repr(each)
        consts.append((each.co_qualname, each.co_firstlineno) if function else body)
    return code.co_code, code.co_names, consts
