"""Runs the judge of signatures on loopback: `judge.py PLAIN_PORT TLS_PORT CERTIFICATE KEY`. It prints the one key that it knows, once it listens."""

import asyncio
import json
import os
import sys
import threading
import time
import traceback

import botocore.session
from hypercorn.asyncio import serve
from hypercorn.config import Config
from ministack.app import app

PLAIN, TLS, CERTIFICATE, KEY = sys.argv[1:]
URL = f"http://127.0.0.1:{PLAIN}"


def client(service, key, secret):
    keys = {"aws_access_key_id": key, "aws_secret_access_key": secret}
    return botocore.session.get_session().create_client(service, endpoint_url=URL, region_name="eu-central-1", **keys)


def introduce():
    """Makes a user who may do everything, since the root's key is not judged, and a bucket."""
    iam = client("iam", "test", "test")
    for _ in range(300):
        try:
            iam.create_user(UserName="u")
            break
        except botocore.exceptions.EndpointConnectionError:
            time.sleep(0.1)
    allowed = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
    iam.put_user_policy(UserName="u", PolicyName="all", PolicyDocument=json.dumps(allowed))
    made = iam.create_access_key(UserName="u")["AccessKey"]
    key, secret = made["AccessKeyId"], made["SecretAccessKey"]
    region = {"LocationConstraint": "eu-central-1"}
    client("s3", key, secret).create_bucket(Bucket="bucket", CreateBucketConfiguration=region)
    print(json.dumps({"key": key, "secret": secret}), flush=True)


config = Config()
config.insecure_bind = [f"127.0.0.1:{PLAIN}"]
config.bind = [f"127.0.0.1:{TLS}"]
config.certfile, config.keyfile = CERTIFICATE, KEY


def introduce_or_end():
    try:
        introduce()
    except Exception:
        traceback.print_exc()
        os._exit(1)


threading.Thread(target=introduce_or_end, daemon=True).start()
asyncio.run(serve(app, config))
