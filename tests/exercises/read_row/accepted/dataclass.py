from dataclasses import astuple, dataclass


@dataclass
class Row:
    step: tuple
    images: tuple
    speed_up: tuple
    efficiency: tuple
    hours: tuple


def read_row(gpus, low, high, updates):
    """The speed-up over one K20m is a quotient of seconds for 128 images, which is what is printed."""
    speed_up = 0.35 / high, 0.60 / low
    return list(astuple(Row((gpus * low, gpus * high), (128 / high, 128 / low), speed_up,
                            tuple(each / gpus for each in speed_up),
                            tuple(gpus * each * updates / 3600 for each in (low, high)))))
