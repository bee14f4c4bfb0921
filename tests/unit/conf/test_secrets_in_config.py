"""A config holds no secrets among its Spark properties: they would stand in the process list, and in what is copied around."""

from __future__ import annotations

import pytest

from sparkring.conf.loading import load_config
from sparkring.conf.schema import SparkConfig
from sparkring.errors import ConfigError


@pytest.mark.parametrize("key", [
    "spark.hadoop.fs.s3a.secret.key", "spark.hadoop.fs.s3a.access.key", "spark.hadoop.fs.s3a.session.token", "spark.authenticate.secret",
    "spark.hadoop.fs.azure.account.key.store.dfs.core.windows.net", "spark.ssl.keyStorePassword", "spark.ssl.rpc.keyPassword",
    "spark.kubernetes.authenticate.submission.oauthToken", "spark.hadoop.fs.azure.account.oauth2.client.secret"])
def test_a_property_whose_value_is_a_secret_is_refused_and_the_value_not_shown(key: str) -> None:
    with pytest.raises(ConfigError, match="a config holds no secret") as refused:
        load_config("local/flights", [f"spark.conf.{key}=hunter2"])
    assert key in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("key", [
    "spark.authenticate", "spark.authenticate.secret.file", "spark.kubernetes.authenticate.submission.oauthTokenFile",
    "spark.executor.cores", "spark.hadoop.fs.s3a.aws.credentials.provider", "spark.hadoop.hadoop.security.credential.provider.path",
    "spark.sql.shuffle.partitions",
    "spark.yarn.keytab", "spark.ssl.keyStore", "spark.network.crypto.keyLength", "spark.hadoop.fs.azure.account.auth.type"])
def test_a_property_that_says_where_a_secret_is_or_none_at_all_is_taken(key: str) -> None:
    assert SparkConfig(conf={key: "x"}).conf == {key: "x"}
