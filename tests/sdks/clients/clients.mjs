// Makes calls with the JavaScript SDKs: clients.mjs SDK URL CALLS. One JSON object per call on stdout.

import { DescribeInstancesCommand, EC2Client } from "@aws-sdk/client-ec2";
import { GetCallerIdentityCommand, STSClient } from "@aws-sdk/client-sts";
import { DynamoDBClient, ListTablesCommand } from "@aws-sdk/client-dynamodb";
import { GetObjectCommand, HeadObjectCommand, PutObjectCommand, S3Client } from "@aws-sdk/client-s3";
import { ListHostedZonesCommand, Route53Client } from "@aws-sdk/client-route-53";
import { Octokit } from "@octokit/core";
import { retry } from "@octokit/plugin-retry";
import { throttling } from "@octokit/plugin-throttling";

const [sdk, url, calls] = process.argv.slice(2);
const config = {
  endpoint: url,
  region: "eu-central-1",
  credentials: { accessKeyId: "ASIAQNZGKIQY56JQ7WML", secretAccessKey: "secret" },
  maxAttempts: 3,
  forcePathStyle: true,
};
const wait = (after, options, octokit, count) => count < 3;
const known = {
  ec2: () => new EC2Client(config).send(new DescribeInstancesCommand({})),
  sts: () => new STSClient(config).send(new GetCallerIdentityCommand({})),
  dynamodb: () => new DynamoDBClient(config).send(new ListTablesCommand({})),
  route53: () => new Route53Client(config).send(new ListHostedZonesCommand({})),
  s3: () => new S3Client(config).send(new GetObjectCommand({ Bucket: "b", Key: "k" })),
  s3_put: () => new S3Client(config).send(new PutObjectCommand({ Bucket: "b", Key: "k", Body: "x".repeat(100_000) })),
  s3_head: () => new S3Client(config).send(new HeadObjectCommand({ Bucket: "b", Key: "k" })),
  github: () => {
    const Client = Octokit.plugin(retry, throttling);
    const octokit = new Client({ baseUrl: url, auth: "token", throttle: { onRateLimit: wait, onSecondaryRateLimit: wait } });
    return octokit.request("GET /users/x");
  },
};

for (const call of calls.split(",")) {
  const begun = performance.now();
  const report = { call, ok: true, error: "", attempts: null };
  try {
    await known[call]();
  } catch (error) {
    const code = error.name === "HttpError" ? `${error.status} ${error.message}` : error.name;
    Object.assign(report, { ok: false, error: code, attempts: error.$metadata?.attempts ?? null });
  }
  report.seconds = (performance.now() - begun) / 1000;
  console.log(JSON.stringify(report));
}
