"""Reading of ROS parameter files as rcl's own parser reads them, which differs from YAML 1.1 in scalars, lists, aliases and empty
values.

Source: `rcl_yaml_param_parser/src/parse.c` of ros2/rcl at c19dab55; `test/ros/test_parameter_files.py` compares this module with
the parser that is installed.
"""

from __future__ import annotations

import math
import re
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.scanner import ScannerError
from yaml.tokens import DirectiveToken

TRUE = frozenset({"Y", "y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"})
FALSE = frozenset({"N", "n", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"})
INTEGER = re.compile(r"[ \t\n\v\f\r]*[+-]?(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
"""Numbers that C's `strtoll` reads completely with base 0."""
DECIMAL = re.compile(r"[ \t\n\v\f\r]*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
HEXADECIMAL = re.compile(r"[ \t\n\v\f\r]*[+-]?0[xX]([0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)([pP][+-]?[0-9]+)?")
NAMED = re.compile(r"[ \t\n\v\f\r]*[+-]?(inf|infinity|nan|nan\([0-9a-zA-Z_]*\))", re.IGNORECASE)
"""Forms that C's `strtod` reads besides those of YAML: decimal, hexadecimal and named."""
DOTTED = frozenset({".nan", ".NaN", ".NAN", *(f"{sign}.{name}" for sign in ("", "+", "-") for name in ("inf", "Inf", "INF"))})
INT64 = range(-(1 << 63), 1 << 63)
SMALLEST_NORMAL = 2.2250738585072014e-308
STRING_TAG = "tag:yaml.org,2002:str"


class RosLoader(yaml.SafeLoader):
    """Loader whose document has plain dictionaries with text keys, lists, and the scalars of rcl.

    A value that is left empty, which rcl refuses, is None. Raises: `yaml.YAMLError` for what rcl refuses too: an alias, a directive
    that it does not know, a version of YAML other than 1.1, a key that is no scalar.
    """

    def scan_directive(self) -> DirectiveToken:
        token: DirectiveToken = super().scan_directive()
        if token.name not in ("YAML", "TAG") or (token.name == "YAML" and token.value != (1, 1)):
            problem = f"ROS reads YAML 1.1 alone, and not `%{token.name}` with another value: remove the line"
            raise ScannerError(None, None, problem, token.start_mark)
        return token

    def scan_plain(self) -> Any:
        token = super().scan_plain()
        if self.flow_level and ":" in token.value:
            problem = f"ROS reads no colon in a text within brackets: write it in quotes, '{token.value}'"
            raise ScannerError(None, None, problem, token.start_mark)
        return token

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        if self.check_event(yaml.AliasEvent):
            raise ComposerError(None, None, "ROS reads no aliases (`*name`): write the value out", self.peek_event().start_mark)  # type: ignore[no-untyped-call]
        return super().compose_node(parent, index)

    def compose_scalar_node(self, anchor: Any) -> ScalarNode:
        event = self.get_event()  # type: ignore[no-untyped-call]
        quoted = event.style in ("'", '"') or event.tag == STRING_TAG
        return ScalarNode(STRING_TAG if quoted else "", event.value, event.start_mark, event.end_mark, style=event.style)

    def construct_document(self, node: Node) -> Any:
        return _value(node)


def scalar(text: str) -> bool | int | float | str:
    """Return the value of an unquoted scalar: `1e-3` is a number, `y` is true, `1:30` is text."""
    if text in TRUE or text in FALSE:
        return text in TRUE
    if INTEGER.fullmatch(text) and (number := _integer(text.strip())) in INT64:
        return number
    value = _double(text)
    return text if value is None else value


def _value(node: Node) -> Any:
    if isinstance(node, MappingNode):
        for key, _ in node.value:
            if not isinstance(key, ScalarNode):
                raise ComposerError(None, None, "ROS reads no list or map as a key: write a text", key.start_mark)
        return {key.value: _value(value) for key, value in node.value}
    if isinstance(node, SequenceNode):
        return [_value(part) for part in node.value]
    if node.tag == STRING_TAG:
        return node.value
    return scalar(node.value) if node.value else None


def _integer(text: str) -> int:
    digits = text.lstrip("+-")
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits.startswith("0") else 10
    return int(text, base)


def _double(text: str) -> float | None:
    """Return the number; None where `strtod` does not read the whole text, or reports that it is out of range."""
    if text in DOTTED:
        return float(text.replace(".", ""))
    if NAMED.fullmatch(text):
        return float(text.split("(", maxsplit=1)[0])
    if DECIMAL.fullmatch(text):
        value = float(text)
    elif HEXADECIMAL.fullmatch(text):
        try:
            value = float.fromhex(text.strip())
        except OverflowError:
            return None
    else:
        return None
    lost = math.isinf(value) or (abs(value) < SMALLEST_NORMAL and re.search(r"[1-9a-fA-F]", re.split("[eEpP]", text)[0]))
    return None if lost else value
