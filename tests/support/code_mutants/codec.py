"""Bugs in the codec: what goes in must come out, and stored bytes are not trusted."""

from code_mutants.mutant import Mutant

TESTS = ("tests/unit/test_codec.py",)

MUTANTS = (
    Mutant(
        "stored bytes of any size are read",
        "codec.py",
        "    def decode(self, data: bytes, type: Any = Any) -> Any:\n        if len(data) > self.limits.size:",
        "    def decode(self, data: bytes, type: Any = Any) -> Any:\n        if False:",
        "A huge stored payload fills the memory of every worker.",
        ("tests/unit/test_codec.py::test_size_is_checked_before_the_bytes_are_read",),
    ),
    Mutant(
        "a date makes a payload larger than its limit",
        "codec.py",
        "            if len(data) > self.limits.size:\n                raise",
        "            if False:\n                raise",
        "A payload is stored that cannot be read.",
        ("tests/unit/test_codec_limits.py",),
    ),
    Mutant(
        "a quote of the value is shown in an error",
        "codec.py",
        'problem = _QUOTED.sub("value", str(error))',
        "problem = str(error)",
        "A secret argument of a wrong type is written to the log.",
        ("tests/unit/test_codec.py::test_a_refusal_does_not_quote_what_it_found",),
    ),
    Mutant(
        "a bracket inside a string counts as nesting",
        "codec.py",
        'brackets = _STRINGS.sub(b"", data).translate(_STEPS, _NO_BRACKETS)',
        "brackets = data.translate(_STEPS, _NO_BRACKETS)",
        "A payload with a text of brackets is refused.",
        ("tests/unit/test_codec.py::test_the_scan_for_depth_agrees_with_the_parser",),
    ),
    Mutant(
        "an infinity in MessagePack is stored",
        "codec.py",
        'and not _may_hold_nan(data):\n            return ""',
        ':\n            return ""',
        "A value is stored that no reader of JSON takes.",
        ("tests/unit/test_codec.py::test_nan_and_infinity_are_refused",),
    ),
    Mutant(
        "a 32-bit infinity in MessagePack is read",
        "codec.py",
        "return 0xCA in data and",
        "return False and",
        "Bytes of another program that hold an infinity are accepted.",
        ("tests/unit/test_codec.py::test_bytes_that_are_no_sound_msgpack_are_a_corrupt_record",),
    ),
    Mutant(
        "bytes after the end of a value are ignored",
        "codec.py",
        'return "" if at == end else "something follows its end"',
        'return ""',
        "A damaged record is read as the sound value in front of the damage.",
        ("tests/unit/test_codec.py::test_the_walk_through_msgpack_agrees_with_the_parser",),
    ),
    Mutant(
        "a decoder is made for every call",
        "codec.py",
        "found = self._decoders[type] = self._format.Decoder(type).decode",
        "found = self._format.Decoder(type).decode",
        "Every call builds a decoder, which takes ten times as long as the call.",
        ("tests/unit/test_codec_limits.py",),
    ),
    Mutant(
        "a subclass of text is refused",
        "codec.py",
        "    if isinstance(value, str):\n        return str.__str__(value)\n",
        "",
        "A template's safe string cannot be an argument.",
        ("tests/unit/test_codec.py::test_subclasses_of_text_and_numbers_go_in_as_what_they_are_underneath",),
    ),
)
