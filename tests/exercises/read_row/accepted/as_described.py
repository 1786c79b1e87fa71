def read_row(gpus, low, high, updates):
    step = (low * gpus, high * gpus)
    images = (128 / high, 128 / low)
    up = (images[0] * 0.35 / 128, images[1] * 0.60 / 128)
    return [step, images, up, (up[0] / gpus, up[1] / gpus), (step[0] * updates / 3600, step[1] * updates / 3600)]
