"""All-reduce against other libraries: MPI implementations and torch's Gloo. ``make bench-peers`` runs this.

`systems` says how each is installed and started, `worker` is one of its processes, `turns` gives them the machine in
turn, `limits` measures what the machine could do, `points` what is measured, `judge` compares, `report` writes.
"""
