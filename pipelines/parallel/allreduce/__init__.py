"""Sums of gradients over ranks: within a host through shared memory, between hosts by Horovod or by rounds of messages.

May import: conf/schema, pipelines/parallel, pipelines/parallel/shared_memory, pipelines/parallel/collectives,
pipelines/parallel/transports.
Not here: which gradients are summed together (collectives/buckets.py), sums that their caller waits for (collectives/sets.py).

    gradients.py          the interface of a reducer, and the choice of one
      hierarchical.py       ranks of a host sum through shared memory, their leaders between hosts
      direct.py             all ranks sum between each other
    between.py            the interface of sums between hosts
      horovod_sums.py       by Horovod's ring
      socket_sums.py        by a thread that plays rounds over connections of its own (exchange.py, incoming.py; socket_open.py opens them)
    rounds.py             ring, tree and two levels as rounds of messages: pure
    costs.py              which of them is cheapest for a buffer, given what each costs (measured_costs.py measures it): pure
    error_feedback.py     sums in 16 bits: what rounding takes away is kept for the next step
"""
