"""Arrow's S3 client gets the bucket's own region, since it does not follow S3 to it; boto3's answers are stubbed."""

from __future__ import annotations

from collections.abc import Callable

import boto3
import pytest
from botocore.stub import Stubber

from sparkring.pipelines.data.stores.s3 import S3Store

HERE = {"x-amz-bucket-region": "eu-central-1"}
EXPECTED = {"Bucket": "bucket"}


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")


@pytest.mark.parametrize(("answer", "region"), [
    pytest.param(lambda stub: stub.add_response("head_bucket", {"BucketRegion": "eu-central-1"}, EXPECTED), "eu-central-1",
                 id="in the answer"),
    pytest.param(lambda stub: stub.add_response("head_bucket", {"ResponseMetadata": {"HTTPHeaders": HERE}}, EXPECTED), "eu-central-1",
                 id="in its header alone, as an old boto3 has it"),
    *(pytest.param(lambda stub, status=status: stub.add_client_error(
        "head_bucket", http_status_code=status, response_meta={"HTTPHeaders": HERE}), "eu-central-1", id=f"in a refusal, {status}")
      for status in (301, 403)),
    pytest.param(lambda stub: stub.add_client_error("head_bucket", http_status_code=404), "us-west-2", id="nowhere")])
def test_the_region_is_the_bucket_s_if_s3_tells_it(answer: Callable[[Stubber], None], region: str) -> None:
    store = S3Store("s3://bucket/data")
    with Stubber(store._client) as stub:
        answer(stub)
        assert store._arrow.region == region
        stub.assert_no_pending_responses()


def test_a_server_at_an_endpoint_of_its_own_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert boto3.client("s3").meta.region_name == "us-west-2"
    with Stubber((store := S3Store("s3://bucket/data"))._client):  # it answers nothing
        assert store._arrow.region == "us-west-2"
