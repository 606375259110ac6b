// Makes calls with the JavaScript SDKs: `clients.mjs SDK`, and a line `CALL URL` on stdin for each. Reports in JSON, a line each.

import { Agent } from "node:https";
import { createInterface } from "node:readline";

import { CreateTagsCommand, DescribeInstancesCommand, EC2Client } from "@aws-sdk/client-ec2";
import { GetCallerIdentityCommand, STSClient } from "@aws-sdk/client-sts";
import { DynamoDBClient, ListTablesCommand } from "@aws-sdk/client-dynamodb";
import { GetObjectCommand, HeadObjectCommand, ListBucketsCommand, PutObjectCommand, S3Client } from "@aws-sdk/client-s3";
import { ChangeResourceRecordSetsCommand, ListHostedZonesCommand, Route53Client } from "@aws-sdk/client-route-53";
import { AutoScalingClient, DescribeAutoScalingGroupsCommand } from "@aws-sdk/client-auto-scaling";
import { CloudWatchClient, ListMetricsCommand } from "@aws-sdk/client-cloudwatch";
import { EKSClient, ListClustersCommand } from "@aws-sdk/client-eks";
import { DescribeLoadBalancersCommand, ElasticLoadBalancingV2Client } from "@aws-sdk/client-elastic-load-balancing-v2";
import { IAMClient, ListUsersCommand } from "@aws-sdk/client-iam";
import { Octokit } from "@octokit/core";
import { paginateRest } from "@octokit/plugin-paginate-rest";
import { retry } from "@octokit/plugin-retry";
import { throttling } from "@octokit/plugin-throttling";

const wait = (after, options, octokit, count) => count < 3;
const clients = new Map();

// Leads AWS's names to loopback, as a pod's hosts file with the gate's address would.
class Aliases extends Agent {
  createConnection(options, done) {
    return super.createConnection({ ...options, host: "127.0.0.1", port: process.env.TEST_ALIASES }, done);
  }
}
const aliases = process.env.TEST_ALIASES ? { requestHandler: { httpsAgent: new Aliases({ keepAlive: true }) } } : {};

// A client for each kind and URL, as a program would have.
function client(kind, url) {
  const name = `${kind.name} ${url}`;
  const settings = {
    endpoint: url,
    region: "eu-central-1",
    credentials: {
      accessKeyId: process.env.TEST_KEY ?? "ASIAQNZGKIQY56JQ7WML",
      secretAccessKey: process.env.TEST_SECRET ?? "secret",
    },
    maxAttempts: 3,
    forcePathStyle: true,
    ...aliases,
  };
  if (!clients.has(name)) clients.set(name, new kind(settings));
  return clients.get(name);
}

function github(url) {
  const Client = Octokit.plugin(paginateRest, retry, throttling);
  return new Client({ baseUrl: url, auth: "token", throttle: { onRateLimit: wait, onSecondaryRateLimit: wait } });
}

const record = { Name: "a.example", Type: "A", TTL: 60, ResourceRecords: [{ Value: "192.0.2.1" }] };
const change = {
  HostedZoneId: "Z1",
  ChangeBatch: { Changes: [{ Action: "UPSERT", ResourceRecordSet: record }] },
};
const object = { Bucket: "bucket", Key: "k" };
const known = {
  ec2: (url) => client(EC2Client, url).send(new DescribeInstancesCommand({})),
  ec2_write: (url) =>
    client(EC2Client, url).send(new CreateTagsCommand({ Resources: ["i-1"], Tags: [{ Key: "k", Value: "v" }] })),
  sts: (url) => client(STSClient, url).send(new GetCallerIdentityCommand({})),
  dynamodb: (url) => client(DynamoDBClient, url).send(new ListTablesCommand({})),
  route53: (url) => client(Route53Client, url).send(new ListHostedZonesCommand({})),
  route53_change: (url) => client(Route53Client, url).send(new ChangeResourceRecordSetsCommand(change)),
  s3: (url) => client(S3Client, url).send(new GetObjectCommand(object)),
  s3_buckets: (url) => client(S3Client, url).send(new ListBucketsCommand({})),
  s3_put: (url) => client(S3Client, url).send(new PutObjectCommand({ ...object, Body: "x".repeat(100_000) })),
  s3_upload: (url) => client(S3Client, url).send(new PutObjectCommand({ ...object, Body: Buffer.alloc(5 << 20) })),
  s3_head: (url) => client(S3Client, url).send(new HeadObjectCommand(object)),
  eks_list: (url) => client(EKSClient, url).send(new ListClustersCommand({})),
  elbv2: (url) => client(ElasticLoadBalancingV2Client, url).send(new DescribeLoadBalancersCommand({})),
  autoscaling: (url) => client(AutoScalingClient, url).send(new DescribeAutoScalingGroupsCommand({})),
  iam: (url) => client(IAMClient, url).send(new ListUsersCommand({})),
  cloudwatch: (url) => client(CloudWatchClient, url).send(new ListMetricsCommand({})),
  github: (url) => github(url).request("GET /users/x"),
  github_put: (url) => github(url).request("PUT /user/starred/o/r"),
  github_pages: async (url) => {
    const octokit = github(url);
    const issues = await octokit.paginate("GET /repos/{owner}/{repo}/issues", { owner: "o", repo: "moved" });
    if (issues.length !== 10) throw new Error(`${issues.length} issues`);
    await octokit.request("POST /repos/o/r/issues", { title: "new" });
  },
  github_upload: (url) => {
    const content = Buffer.alloc(5 << 20).toString("base64");
    return github(url).request("PUT /repos/o/r/contents/f", { message: "m", content });
  },
  github_write: (url) => github(url).request("POST /repos/o/r/issues", { title: "t" }),
};

for await (const line of createInterface({ input: process.stdin })) {
  const [call, url] = line.split(" ");
  const report = { ok: true, error: "", attempts: null };
  try {
    await known[call](url);
  } catch (error) {
    const told = ["HttpError", "Error"].includes(error.name);
    const code = told ? `${error.status} ${error.message}` : error.name;
    Object.assign(report, { ok: false, error: code, attempts: error.$metadata?.attempts ?? null });
  }
  console.log(JSON.stringify(report));
}
