"""BMP files as pixels, with the palettes and colour masks that TensorFlow's own decoder ignores. NumPy only.

The layout: https://learn.microsoft.com/windows/win32/gdi/bitmap-storage. `header` is the size in bytes of the
second header, which tells its versions apart.
"""
import struct

import numpy as np

_UNCOMPRESSED, _MASKS, _ALPHA_MASKS = 0, 3, 6  # values of the field `compression`
_OS2 = 12  # sizes of the second header
_OS2_VERSION_2 = 64
_WITH_ALPHA_MASK = (56, 108, 124)
_HEADERS = (_OS2, 40, 52, _OS2_VERSION_2, *_WITH_ALPHA_MASK)
_MASKS_OFFSET = 54  # in the later headers, or behind the header of 40 bytes
_DEFAULT_MASKS = {16: (0x7c00, 0x3e0, 0x1f), 32: (0xff0000, 0xff00, 0xff)}


def size(contents: bytes) -> tuple[int, int] | None:
    """Returns (width, height) in pixels, or None if the file is not a BMP of a known version.

    Raises:
      struct.error: the header is cut off.
    """
    header, = struct.unpack_from('<I', contents, 14)
    if header not in _HEADERS:
        return None
    width, height = struct.unpack_from('<HH' if header == _OS2 else '<ii', contents, 18)
    return width, abs(height)


def decode(contents: bytes) -> np.ndarray:
    """Returns the pixels of a BMP file: uint8 [height, width, 3], or 4 channels if it has transparency.

    Raises:
      ValueError: the file is cut off, or of a kind that this function does not know; the message says which.
    """
    try:
        offset, header = struct.unpack_from('<II', contents, 10)
        if header == _OS2:
            width, height, _, bits = struct.unpack_from('<4H', contents, 18)
            compression = _UNCOMPRESSED
            num_colours = 0
        else:
            width, height, _, bits, compression = struct.unpack_from('<iiHHI', contents, 18)
            num_colours, = struct.unpack_from('<I', contents, 46)
        masks = struct.unpack_from('<4I', contents, _MASKS_OFFSET) if compression != _UNCOMPRESSED else None
    except struct.error as error:
        raise ValueError('a BMP that is cut off') from error
    if header not in _HEADERS or bits not in (1, 4, 8, 16, 24, 32):
        raise ValueError(f'a BMP of an unknown kind ({bits} bits a pixel); save it as PNG')
    # With other numbers of bits, and in version 2 of OS/2, the values for masks mean compression.
    may_have_masks = bits in (16, 32) and header != _OS2_VERSION_2
    if compression not in (_UNCOMPRESSED, _MASKS, _ALPHA_MASKS) or (masks and not may_have_masks):
        raise ValueError('a compressed BMP; save it as PNG')
    stride = (width * bits + 31) // 32 * 4  # rows are padded to four bytes
    if not 14 + header <= offset <= len(contents) - stride * abs(height):
        raise ValueError('a BMP that is cut off')
    rows = np.frombuffer(contents, np.uint8, stride * abs(height), offset).reshape(abs(height), stride)
    if height > 0:  # from the bottom to the top, unless the height is negative
        rows = rows[::-1]
    if bits <= 8:
        entry_bytes = 3 if header == _OS2 else 4
        palette = _palette(contents, 14 + header, offset, entry_bytes, num_colours, bits)
        return _from_palette(rows, width, bits, palette)
    if bits == 24:
        return rows[:, :3 * width].reshape(-1, width, 3)[..., ::-1]
    if masks is None:
        masks = _DEFAULT_MASKS[bits]
    elif header not in _WITH_ALPHA_MASK and compression != _ALPHA_MASKS:
        masks = masks[:3]
    return _from_masks(rows.view(f'<u{bits // 8}')[:, :width], masks)


def _palette(contents, start, end, entry_bytes, num_colours, bits):
    """Returns the colours of a palette, uint8 [2 ** bits, 3]; black where the file has fewer."""
    count = min(num_colours or 2 ** bits, 2 ** bits, max(end - start, 0) // entry_bytes)
    palette = np.zeros([2 ** bits, 3], np.uint8)
    entries = np.frombuffer(contents, np.uint8, count * entry_bytes, start).reshape(count, entry_bytes)
    palette[:count] = entries[:, 2::-1]
    return palette


def _from_palette(rows, width, bits, palette):
    """Returns the colours of indices that are packed in bytes, the first one in the highest bits."""
    shifts = np.arange(8 - bits, -1, -bits, dtype=np.uint8)
    indices = rows[..., None] >> shifts & (2 ** bits - 1)
    return palette[indices.reshape(len(rows), -1)[:, :width]]


def _from_masks(pixels, masks):
    """Returns the channels of pixels [height, width] of 16 or 32 bits; each channel is the bits in its mask."""
    channels = []
    for mask in [*masks[:3], *filter(None, masks[3:])]:
        shift = (mask & -mask).bit_length() - 1
        largest = mask >> max(shift, 0)
        if not 0 < largest < 2 ** 16 or largest & (largest + 1) or mask >= 2 ** (8 * pixels.itemsize):
            raise ValueError(f'a BMP with the colour mask {mask:#x}; save it as PNG')
        values = ((pixels & mask) >> shift).astype(np.uint32)
        channels.append(((values * 255 + largest // 2) // largest).astype(np.uint8))
    if len(channels) == 4 and not channels[3].any():  # as browsers do: programs leave it at 0 and mean opaque
        channels.pop()
    return np.stack(channels, -1)
