def split_points(points, processes):
    size, more = divmod(points, processes)
    shares, first = [], 0
    for p in range(processes):
        end = first + size + (p < more)
        shares.append((first, end, (end - first) / points))
        first = end
    return shares
