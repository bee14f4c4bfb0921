"""A schedule as data: actions, costs, memory, rules, files, and the simulator that plays it. Pure.

May import: conf/schema.
Not here: running a schedule (stages); making one (generators).
"""
