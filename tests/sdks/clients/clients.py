"""Makes calls with the Python SDKs: clients.py SDK URL CALLS. One JSON object per call on stdout."""

import json
import os
import sys
import time

os.environ.update(
    AWS_ACCESS_KEY_ID="ASIAQNZGKIQY56JQ7WML", AWS_SECRET_ACCESS_KEY="secret", AWS_DEFAULT_REGION="eu-central-1"
)

AWS = {
    "ec2": lambda c: c.describe_instances(),
    "sts": lambda c: c.get_caller_identity(),
    "dynamodb": lambda c: c.list_tables(),
    "eks": lambda c: c.describe_cluster(name="c"),
    "route53": lambda c: c.list_hosted_zones(),
    "s3": lambda c: c.get_object(Bucket="b", Key="k//..%2F")["Body"].read(),
    "s3_put": lambda c: c.put_object(Bucket="b", Key="k", Body=b"x" * 100_000),
    "s3_head": lambda c: c.head_object(Bucket="b", Key="k"),
}


def boto3_calls(url, mode):
    import boto3
    from botocore.config import Config

    config = Config(retries={"mode": mode, "max_attempts": 3}, s3={"addressing_style": "path"})

    def of(name):
        client = boto3.client(name.split("_")[0], endpoint_url=url, config=config)
        return lambda: AWS[name](client)

    return {name: of(name) for name in AWS}


def github_calls(url):
    from github import Auth, Github, GithubRetry

    retry = GithubRetry(total=3, secondary_rate_wait=1)
    github = Github(base_url=url, auth=Auth.Token("token"), retry=retry)
    return {"github": lambda: github.get_user("x").login}


def google_calls(url):
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    client = storage.Client(
        project="p", credentials=AnonymousCredentials(), client_options={"api_endpoint": url}
    )
    retry = storage.retry.DEFAULT_RETRY.with_timeout(6)
    return {"google": lambda: list(client.list_buckets(retry=retry, timeout=5))}


def azure_calls(url):
    from azure.core import PipelineClient
    from azure.core.exceptions import HttpResponseError
    from azure.core.pipeline.policies import RetryPolicy
    from azure.core.rest import HttpRequest

    client = PipelineClient(url, policies=[RetryPolicy(retry_total=3, retry_backoff_factor=0.2)])

    def call():
        response = client.send_request(HttpRequest("GET", url + "/subscriptions/s/resourcegroups"))
        response.read()
        if response.status_code >= 400:
            raise HttpResponseError(response=response)

    return {"azure": call}


def described(error):
    answer = getattr(error, "response", None)
    if isinstance(answer, dict):  # botocore's
        return answer["Error"]["Code"], answer["ResponseMetadata"].get("RetryAttempts", 0) + 1
    cause = getattr(error, "cause", None) or getattr(error, "_cause", None) or error
    code = getattr(getattr(cause, "error", None), "code", None)  # azure-core's
    return code or f"{type(cause).__name__}: {cause}"[:300], None


def main():
    sdk, url, calls = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
    known = {
        "boto3_legacy": lambda: boto3_calls(url, "legacy"),
        "boto3_standard": lambda: boto3_calls(url, "standard"),
        "boto3_adaptive": lambda: boto3_calls(url, "adaptive"),
        "PyGithub": lambda: github_calls(url),
        "google-cloud-storage": lambda: google_calls(url),
        "azure-core": lambda: azure_calls(url),
    }[sdk]()
    for name in calls:
        begun = time.monotonic()
        report = {"call": name, "ok": True, "error": "", "attempts": None}
        try:
            known[name]()
        except Exception as error:  # noqa: BLE001: whatever an SDK makes of an answer is what is reported
            code, attempts = described(error)
            report |= {"ok": False, "error": code, "attempts": attempts}
        report["seconds"] = round(time.monotonic() - begun, 3)
        print(json.dumps(report), flush=True)


main()
