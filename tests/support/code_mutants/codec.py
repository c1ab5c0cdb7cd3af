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
        TESTS,
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
        (*TESTS, "tests/services/app/test_task_arguments.py"),
    ),
    Mutant(
        "a bracket inside a string counts as nesting",
        "codec.py",
        'brackets = _STRINGS.sub(b"", data).translate(_STEPS, _NO_BRACKETS)',
        "brackets = data.translate(_STEPS, _NO_BRACKETS)",
        "A payload with a text of brackets is refused.",
        TESTS,
    ),
    Mutant(
        "an infinity in MessagePack is stored",
        "codec.py",
        'and not _may_hold_nan(data):\n            return ""',
        ':\n            return ""',
        "A value is stored that no reader of JSON takes.",
        TESTS,
    ),
    Mutant(
        "a 32-bit infinity in MessagePack is read",
        "codec.py",
        "return 0xCA in data and",
        "return False and",
        "Bytes of another program that hold an infinity are accepted.",
        TESTS,
    ),
    Mutant(
        "bytes after the end of a value are ignored",
        "codec.py",
        'return "" if at == end else "something follows its end"',
        'return ""',
        "A damaged record is read as the sound value in front of the damage.",
        TESTS,
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
        TESTS,
    ),
)
