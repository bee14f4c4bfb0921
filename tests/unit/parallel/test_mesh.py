"""Who is what in a mesh, and the canonical list of its process sets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkring.errors import ConfigError, LayoutRefused
from sparkring.pipelines.parallel.mesh import Coordinate, Mesh

meshes = st.builds(Mesh, st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple), st.integers(1, 3))


def test_ranks_lie_by_stage_then_replica_then_shard() -> None:
    #   stage 0   replica 0   0 1        stage 1   replica 0   4 5
    #             replica 1   2 3
    mesh = Mesh((2, 1), shards=2)
    assert [mesh.coordinate(rank) for rank in range(mesh.size)] == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1)]
    assert (mesh.replica_set(0, 1), mesh.replica_set(1, 1), mesh.shard_set(0, 1), mesh.tied_set((0, 1), 1)) == (
        (1, 3), (5,), (2, 3), (1, 3, 5))
    assert mesh.peer_pairs() == ((0, 4), (1, 5), (2, 4), (3, 5))


def test_replicas_of_unequal_stages_meet_as_the_micro_batches_fall_to_them() -> None:
    #   micro-batch   0 1 2 3 4 5      pairs of replicas that hand on
    #   2 replicas    0 1 0 1 0 1      0-0 1-1 0-2 1-0 0-1 1-2
    #   3 replicas    0 1 2 0 1 2
    assert Mesh((2, 3)).peer_pairs() == ((0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 4))
    assert Mesh((2, 4)).peer_pairs() == ((0, 2), (0, 4), (1, 3), (1, 5))  # replica 0 only meets 0 and 2
    assert [Mesh((2, 3)).worker(1, micro_batch) for micro_batch in range(4)] == [0, 1, 2, 0]


@pytest.mark.parametrize(("mesh", "expected"), [
    pytest.param(Mesh(), (), id="one rank needs none"),
    pytest.param(Mesh((4,)), (), id="replicas of one stage are the global set"),
    pytest.param(Mesh((1,), shards=3), (), id="shards of one copy are the global set"),
    pytest.param(Mesh((1, 1)), (), id="two neighbours are the global set"),
    pytest.param(Mesh((1, 1, 1)), ((0, 1), (1, 2)), id="neighbours in a row"),
    pytest.param(Mesh((2, 1)), ((0, 1), (0, 2), (1, 2)), id="two replicas, then one"),
    pytest.param(Mesh((2, 2)), ((0, 1), (0, 2), (1, 3), (2, 3)), id="two by two"),
    pytest.param(Mesh((1, 1), shards=2), ((0, 1), (0, 2), (1, 3), (2, 3)), id="two stages of two shards"),
])
def test_the_sets_of_a_mesh_are_listed_once_and_in_order(mesh: Mesh, expected: tuple[tuple[int, ...], ...]) -> None:
    assert mesh.process_sets((0,) * mesh.size) == expected


def test_the_sidecar_needs_no_sets_for_neighbours_and_a_pipeline_of_chunks_one_more() -> None:
    assert Mesh((2, 1)).process_sets((0, 0, 0), transport="sidecar") == ((0, 1),)
    assert Mesh((1, 1, 1)).process_sets((0, 0, 0), wraps=True) == ((0, 1), (0, 2), (1, 2))
    assert Mesh((1, 2, 1)).process_sets((0,) * 4, transport="sidecar", tied=[(2, 0)]) == ((0, 3), (1, 2))


@given(meshes, st.booleans(), st.data())
def test_every_list_is_canonical_and_holds_each_rank_s_own_sets(mesh: Mesh, wraps: bool, data: st.DataObject) -> None:
    sets = mesh.process_sets((0,) * mesh.size, wraps=wraps)
    assert list(sets) == sorted(set(sets))
    assert all(1 < len(ranks) < mesh.size and list(ranks) == sorted(set(ranks)) for ranks in sets)
    rank = data.draw(st.integers(0, mesh.size - 1))
    place = mesh.coordinate(rank)
    assert mesh.rank(*place) == rank
    for own in (mesh.replica_set(place.stage, place.shard), mesh.shard_set(place.stage, place.replica)):
        assert rank in own
        assert len(own) in {1, mesh.size} or own in sets
    for micro_batch in range(6):
        worker = Coordinate(place.stage, mesh.worker(place.stage, micro_batch), place.shard)
        if place.stage + 1 < mesh.num_stages:
            following = mesh.rank(place.stage + 1, mesh.worker(place.stage + 1, micro_batch), place.shard)
            assert (mesh.rank(*worker), following) in mesh.peer_pairs()


def test_a_mesh_without_ranks_and_a_ring_of_another_size_are_refused() -> None:
    with pytest.raises(LayoutRefused, match=r"replicas=\(2, 0\).*numbers from 1 up"):
        Mesh((2, 0))
    with pytest.raises(LayoutRefused, match="at least one"):
        Mesh(())
    with pytest.raises(LayoutRefused, match="2 \\+ 1 replicas are 3 ranks, the ring has 4"):
        Mesh((2, 1)).process_sets((0,) * 4)
    assert issubclass(LayoutRefused, ConfigError)
