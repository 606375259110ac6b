"""Makes calls with one of the Python SDKs: `clients.py SDK`, and a line `CALL URL` on stdin for each. Reports in JSON, a line each."""

import asyncio
import functools
import json
import os
import socket
import sys

KEY = {"aws_access_key_id": os.environ.get("TEST_KEY", "ASIAQNZGKIQY56JQ7WML"), "aws_secret_access_key": os.environ.get("TEST_SECRET", "secret")}
REGION = "eu-central-1"
LARGE = 5 << 20
CHANGE = {
    "Action": "UPSERT",
    "ResourceRecordSet": {"Name": "a.example", "Type": "A", "TTL": 60, "ResourceRecords": [{"Value": "192.0.2.1"}]},
}
AWS = {
    "ec2": ("ec2", "describe_instances", {}),
    "ec2_write": ("ec2", "create_tags", {"Resources": ["i-1"], "Tags": [{"Key": "k", "Value": "v"}]}),
    "sts": ("sts", "get_caller_identity", {}),
    "dynamodb": ("dynamodb", "list_tables", {}),
    "eks": ("eks", "describe_cluster", {"name": "c"}),
    "eks_list": ("eks", "list_clusters", {}),
    "route53": ("route53", "list_hosted_zones", {}),
    "route53_change": ("route53", "change_resource_record_sets", {"HostedZoneId": "Z1", "ChangeBatch": {"Changes": [CHANGE]}}),
    "s3": ("s3", "get_object", {"Bucket": "bucket", "Key": "k//..%2F"}),
    "s3_buckets": ("s3", "list_buckets", {}),
    "s3_put": ("s3", "put_object", {"Bucket": "bucket", "Key": "k", "Body": b"x" * 100_000}),
    "s3_upload": ("s3", "put_object", {"Bucket": "bucket", "Key": "k", "Body": bytes(LARGE)}),
    "s3_head": ("s3", "head_object", {"Bucket": "bucket", "Key": "k"}),
    "elbv2": ("elbv2", "describe_load_balancers", {}),
    "autoscaling": ("autoscaling", "describe_auto_scaling_groups", {}),
    "iam": ("iam", "list_users", {}),
    "cloudwatch": ("cloudwatch", "list_metrics", {}),
}


def settings(mode):
    return {"retries": {"mode": mode, "max_attempts": 3}, "s3": {"addressing_style": "path"}}


def boto3_calls(mode):
    import boto3
    from botocore.config import Config

    @functools.cache
    def client(service, url):
        return boto3.client(service, endpoint_url=url, region_name=REGION, config=Config(**settings(mode)), **KEY)

    def call(name, url):
        service, method, arguments = AWS[name]
        answer = getattr(client(service, url), method)(**arguments)
        return answer["Body"].read() if "Body" in answer else None

    return call


def aiobotocore_calls():
    from aiobotocore.config import AioConfig
    from aiobotocore.session import get_session

    loop, session, clients = asyncio.new_event_loop(), get_session(), {}

    async def made(name, url):
        service, method, arguments = AWS[name]
        if (service, url) not in clients:
            config = AioConfig(**settings("standard"))
            client = session.create_client(service, endpoint_url=url, region_name=REGION, config=config, **KEY)
            clients[service, url] = await client.__aenter__()
        answer = await getattr(clients[service, url], method)(**arguments)
        if "Body" in answer:
            await answer["Body"].read()

    return lambda name, url: loop.run_until_complete(made(name, url))


def github_calls():
    from github import Auth, Github, GithubRetry

    @functools.cache
    def client(url, lazy=True):
        retry = GithubRetry(total=3, secondary_rate_wait=1)
        return Github(base_url=url, auth=Auth.Token("token"), retry=retry, lazy=lazy)

    def call(name, url):
        if name == "github":
            return client(url).get_user("x").login
        if name == "github_pages":
            return pages(client(url, False))
        repository = client(url).get_repo("o/r")
        if name == "github_upload":
            return repository.create_file("f", "m", bytes(LARGE))
        if name == "github_put":
            return client(url).get_user().add_to_starred(repository)
        return repository.create_issue("t").number

    return call


def pages(client):
    """Reads a list of many pages, and follows the URLs of the bodies: each is asserted to be of the API's host."""
    repository = client.get_repo("o/moved")  # a 301
    issues = list(repository.get_issues())
    assert len(issues) == 10, issues
    assert [comment.body for comment in issues[0].get_comments()] == ["c"]  # the issue's own URL, of its body
    assert repository.create_issue("new").number == 11


def google_calls():
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    @functools.cache
    def client(url):
        return storage.Client(project="p", credentials=AnonymousCredentials(), client_options={"api_endpoint": url})

    def call(name, url):
        retry = storage.retry.DEFAULT_RETRY.with_timeout(10)
        if name == "google":
            return list(client(url).list_buckets(retry=retry, timeout=20))
        if name == "google_delete":
            return client(url).bucket("b").delete(retry=retry, timeout=20)
        if name == "google_upload":
            return client(url).bucket("b").blob("o").upload_from_string(bytes(LARGE), retry=retry, timeout=20)
        return client(url).create_bucket("b", retry=retry, timeout=20).name

    return call


def azure_calls():
    from azure.core import PipelineClient
    from azure.core.exceptions import HttpResponseError
    from azure.core.pipeline.policies import RetryPolicy
    from azure.core.rest import HttpRequest

    @functools.cache
    def client(url):
        return PipelineClient(url, policies=[RetryPolicy(retry_total=3, retry_backoff_factor=0.2)])

    def call(name, url):
        url += "/subscriptions/s/resourcegroups"
        body = {"content": bytes(LARGE)} if name == "azure_upload" else {"json": {"location": "x"}}
        request = HttpRequest("GET", url) if name == "azure" else HttpRequest("PUT", url + "/g", **body)
        response = client(url).send_request(request)
        response.read()
        if response.status_code >= 400:
            raise HttpResponseError(response=response)

    return call


def hetzner_calls():
    from hcloud import Client

    client = functools.cache(lambda url: Client("token", api_endpoint=url + "/v1"))
    return lambda name, url: client(url).servers.get_list()


def cloudflare_calls():
    from cloudflare import Cloudflare

    client = functools.cache(lambda url: Cloudflare(api_token="token", base_url=url + "/client/v4"))
    return lambda name, url: client(url).zones.list()


def grpc_calls():
    import grpc

    @functools.cache
    def channel(target):
        if target.startswith("https://"):  # with the roots and the name that it takes by itself
            return grpc.secure_channel(target.removeprefix("https://"), grpc.ssl_channel_credentials())
        roots = open(os.environ["TEST_ROOTS"], "rb").read()
        name = [("grpc.ssl_target_name_override", "localhost")]
        return grpc.secure_channel(target, grpc.ssl_channel_credentials(roots), options=name)

    def call(name, target):
        path = name if name.startswith("/") else f"/p.Service/{name}"
        return channel(target).unary_unary(path)(bytes(LARGE) if name == "Upload" else b"", timeout=20)

    return call


def described(error):
    answer = getattr(error, "response", None)
    if isinstance(answer, dict):  # botocore's
        return answer["Error"]["Code"], answer["ResponseMetadata"].get("RetryAttempts", 0) + 1
    if hasattr(error, "details") and callable(error.details):  # grpcio's
        return f"{error.code().name} {error.details()}"[:300], None
    cause = getattr(error, "cause", None) or getattr(error, "_cause", None) or error
    code = getattr(getattr(cause, "error", None), "code", None)  # azure-core's
    return code or f"{type(cause).__name__}: {cause}"[:300], None


def lead_to_loopback(port):
    """Resolves the names of AWS and GitHub as a pod's hosts file with the gate's address would."""
    real = socket.getaddrinfo

    def resolve(host, *rest, **more):
        if isinstance(host, str) and host.endswith((".amazonaws.com", "api.github.com")):
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]
        return real(host, *rest, **more)

    socket.getaddrinfo = resolve


def main():
    if "TEST_ALIASES" in os.environ:
        lead_to_loopback(int(os.environ["TEST_ALIASES"]))
    call = {
        "boto3_legacy": lambda: boto3_calls("legacy"),
        "boto3_standard": lambda: boto3_calls("standard"),
        "boto3_adaptive": lambda: boto3_calls("adaptive"),
        "aiobotocore": aiobotocore_calls,
        "PyGithub": github_calls,
        "google-cloud-storage": google_calls,
        "azure-core": azure_calls,
        "hcloud": hetzner_calls,
        "cloudflare": cloudflare_calls,
        "grpcio": grpc_calls,
    }[sys.argv[1]]()
    for line in sys.stdin:
        name, url = line.split()
        report = {"ok": True, "error": "", "attempts": None}
        try:
            call(name, url)
        except Exception as error:  # noqa: BLE001: whatever an SDK makes of an answer is what is reported
            code, attempts = described(error)
            report |= {"ok": False, "error": code, "attempts": attempts}
        print(json.dumps(report), flush=True)


main()
