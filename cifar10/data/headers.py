"""What the header of a picture file says before the picture is decoded: its size, and which way up it is."""
import struct

from cifar10.data import bmp

_JPEG_SIZES = {*range(0xc0, 0xd0)} - {0xc4, 0xc8, 0xcc}  # the markers of frames, SOF0 to SOF15
_JPEG_BARE = {0x01, *range(0xd0, 0xd8)}  # markers without a segment
_JPEG_PIXELS = {0xd8, 0xd9, 0xda}  # markers that do not come before a frame
_JPEG = b'\xff\xd8\xff'
_APP1 = 0xe1  # the marker of the segment that holds EXIF, or something else
_EXIF = b'Exif\0\0'
_EXIF_ORIENTATION = 0x112  # a tag; its value is a SHORT
_EXIF_SHORT = 3

UPRIGHT = 1  # the orientation of a picture that is shown as it is stored
TRANSPOSED = 5  # the first orientation of those whose stored rows are shown as columns

_GIF = b'GIF8'
_GIF_EXTENSION = b'!'
_GIF_FRAME = b','
_GIF_END = b';'

_EXTENDED_WEBP = b'WEBPVP8X'
_WEBP_ANIMATION = 0x02
_WEBP_ALPHA = 0x10


def size(head: bytes) -> tuple[int, int] | None:
    """Returns (width, height) in pixels of a PNG, JPEG, GIF, BMP or WebP file, or None if the header has none.

    Of a GIF it is the size of the first frame.

    Args:
      head: the beginning of the file, at least its header.
    """
    for magic, reader in _READERS.items():
        if head.startswith(magic):
            try:
                width_height = reader(head)
            except (struct.error, IndexError, ValueError):  # cut off
                return None
            return width_height if width_height and min(width_height) > 0 else None
    return None


def orientation(head: bytes) -> int:
    """Returns the EXIF orientation of a JPEG, from 1 to 8; UPRIGHT if it has none, and for other kinds of files.

    Where the first stored row and column are shown: 1 top, left; 2 top, right; 3 bottom, right; 4 bottom, left; 5 left,
    top; 6 right, top; 7 right, bottom; 8 left, bottom (Exif 2.32, section 4.6.4).

    Args:
      head: the beginning of the file, at least its header.
    """
    if not head.startswith(_JPEG):
        return UPRIGHT
    try:
        for marker, offset in _jpeg_segments(head):
            length, = struct.unpack_from('>H', head, offset)
            body = head[offset + 2:offset + length]
            if marker == _APP1 and body.startswith(_EXIF):
                return _exif_orientation(body[len(_EXIF):])
    except (struct.error, IndexError, ValueError):  # cut off
        pass
    return UPRIGHT


def first_frame(contents: bytes) -> bytes:
    """Returns the contents of a file, with animations changed so that TensorFlow decodes only one frame.

    TensorFlow decodes all frames of a GIF, even to return one. So a GIF keeps only the first frame, moved to
    the corner. A WebP animation is marked as transparent, because TensorFlow writes four channels of it, but
    allocates memory for as many as the mark says.
    """
    if contents.startswith(_GIF):
        start = _gif_frame(contents)
        try:
            end = _gif_blocks(contents, start + 11 + _gif_colours(contents[start + 9]))
        except IndexError:  # cut off within the first frame, so there is no other
            end = len(contents)
        return contents[:start + 1] + bytes(4) + contents[start + 5:end] + _GIF_END
    if contents[8:16] == _EXTENDED_WEBP and contents[20] & _WEBP_ANIMATION:
        return contents[:20] + bytes([contents[20] | _WEBP_ALPHA]) + contents[21:]
    return contents


def _png(head):
    return struct.unpack_from('>II', head, 16) if head[12:16] == b'IHDR' else None


def _jpeg(head):
    for marker, offset in _jpeg_segments(head):
        if marker in _JPEG_SIZES:
            return struct.unpack_from('>HH', head, offset + 3)[::-1]
    return None


def _jpeg_segments(head):
    """Yields (marker, offset of the length) of the segments as libjpeg finds them, which skips what is not a marker."""
    offset = 2
    while True:
        offset = head.index(b'\xff', offset)
        while head[offset] == 0xff:
            offset += 1
        marker = head[offset]
        offset += 1
        if marker in _JPEG_PIXELS:
            return
        if marker and marker not in _JPEG_BARE:
            yield marker, offset
            offset += max(struct.unpack_from('>H', head, offset)[0], 2)


def _exif_orientation(tiff):
    """Returns the orientation in the first directory of an EXIF segment, which is laid out as a TIFF file."""
    order = {b'II': '<', b'MM': '>'}.get(tiff[:2])
    if order is None:
        return UPRIGHT
    directory, = struct.unpack_from(order + 'I', tiff, 4)
    entries, = struct.unpack_from(order + 'H', tiff, directory)
    for i in range(entries):
        tag, kind, _, value = struct.unpack_from(order + 'HHIH', tiff, directory + 2 + 12 * i)
        if tag == _EXIF_ORIENTATION:
            return value if kind == _EXIF_SHORT and 1 <= value <= 8 else UPRIGHT
    return UPRIGHT


def _gif(head):
    return struct.unpack_from('<HH', head, _gif_frame(head) + 5)


def _gif_frame(contents):
    """Returns the offset of the first frame; raises an IndexError if there is none."""
    offset = 13 + _gif_colours(contents[10])
    while contents[offset:offset + 1] == _GIF_EXTENSION:
        offset = _gif_blocks(contents, offset + 2)
    if contents[offset:offset + 1] != _GIF_FRAME:
        raise IndexError
    return offset


def _gif_colours(flags):
    """Returns the size in bytes of a table of colours."""
    return 3 * 2 ** (flags % 8 + 1) if flags >= 0x80 else 0


def _gif_blocks(contents, offset):
    """Returns the end of the sequence of blocks that begins at an offset."""
    while contents[offset]:
        offset += 1 + contents[offset]
    return offset + 1


def _webp(head):
    kind = head[8:16]
    body = head[20:30]
    if kind == _EXTENDED_WEBP:
        return tuple(1 + int.from_bytes(body[i:i + 3], 'little') for i in (4, 7)) if len(body) == 10 else None
    if kind == b'WEBPVP8L':
        bits, = struct.unpack_from('<I', body, 1)
        return 1 + bits % 2 ** 14, 1 + (bits >> 14) % 2 ** 14
    if kind == b'WEBPVP8 ':
        width, height = struct.unpack_from('<HH', body, 6)
        return width % 2 ** 14, height % 2 ** 14  # the upper two bits are for scaling
    return None


_READERS = {b'\x89PNG\r\n\x1a\n': _png, _JPEG: _jpeg, _GIF: _gif, b'BM': bmp.size, b'RIFF': _webp}
