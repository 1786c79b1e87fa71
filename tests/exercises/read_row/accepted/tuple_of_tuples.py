K20M = (0.35, 0.60)


def read_row(gpus, low, high, updates):
    rows = []
    rows.append((gpus * low, gpus * high))
    rows.append(tuple(sorted(gpus * 128 / seconds for seconds in rows[0])))
    rows.append((rows[1][0] / (128 / K20M[0]), rows[1][1] / (128 / K20M[1])))
    rows.append(tuple(up / gpus for up in rows[2]))
    rows.append(tuple(updates * seconds / 60 / 60 for seconds in rows[0]))
    return tuple(rows)
