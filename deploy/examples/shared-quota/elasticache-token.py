# Prints a token of AWS IAM for ElastiCache, valid for 15 minutes: elasticache-token.py CACHE USER REGION (for `password_command`).
# https://docs.aws.amazon.com/AmazonElastiCache/latest/dg/auth-iam.html
import sys
from botocore.model import ServiceId
from botocore.session import Session
from botocore.signers import RequestSigner

cache, user, region = sys.argv[1:]
session = Session()
signer = RequestSigner(
    ServiceId("elasticache"), region, "elasticache", "v4", session.get_credentials(), session.get_component("event_emitter")
)
url = f"http://{cache}/?Action=connect&User={user}"
call = {"method": "GET", "url": url, "body": {}, "headers": {}, "context": {}}
print(signer.generate_presigned_url(call, "connect", 900, region).removeprefix("http://"))
