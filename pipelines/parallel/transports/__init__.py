"""Messages between two ranks of a ring, by shared memory, TCP or Horovod, behind one interface.

May import: conf/schema, pipelines/parallel, pipelines/parallel/shared_memory, pipelines/parallel/collectives.
Not here: what is sent, and when (stages).

    catalogue.py          opens a transport by its name in the config
    base.py               the contracts: Transport, for its users, and Link, which reaches one or several other ranks
    linked.py             a transport made of links: checks shapes, keeps deadlines and the journal, raises the errors
      sidecar.py            its links: memory.py within a host (memory_connect.py connects them)
                            and sockets.py between hosts (socket_connect.py): stream.py carries messages, pump.py moves them
      horovod.py            its link: framed.py over Horovod's allgather
    framed.py             a link over a Wire, which only carries flat bytes whose length the receiver knows
    tensor_specs.py, payload.py     the shapes of a message, and its bytes
    signals.py, journal.py          how a wait ends, and what the rank did last

To add a transport, write a Wire, or a Link if messages bring their own length, and name it in ``TransportName`` of the config; mypy
then names the cases that are missing, here and in mesh.py.
"""
