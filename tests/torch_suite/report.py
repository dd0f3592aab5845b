from collections import Counter
def write(results, tests, options):
    c = Counter((s.backend, s.ranks, s.names, r["outcome"]) for (s, t), r in results.items())
    for k, v in sorted(c.items()): print(k, v)
    return 0
