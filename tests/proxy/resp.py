"""Just enough of the server's protocol to see where a command or a reply ends."""

FUNCTION = b"queasy_v1_"
ARRAY, BULK = b"*$"


def end_of(data: bytearray) -> int:
    """The length of the first command or reply in the bytes; 0 if it is incomplete."""
    at, values = 0, 1
    while values:
        end = data.find(b"\r\n", at)
        if end < 0:
            return 0
        kind, size, at = data[at], data[at + 1 : end], end + 2
        values -= 1
        if kind == ARRAY:
            values += max(0, int(size))
        elif kind == BULK and size != b"-1":
            at += int(size) + 2
    return at if at <= len(data) else 0


def name_of(command: bytes) -> str:
    """The name of the called function without its prefix, or the name of the command."""
    words = command.split(b"\r\n", 5)[2:5:2]
    if words[0].startswith(b"FCALL"):
        return words[1].removeprefix(FUNCTION).decode()
    return words[0].decode()
