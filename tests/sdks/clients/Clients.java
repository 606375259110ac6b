// Makes calls with the AWS SDK for Java 2: a line `CALL URL` on stdin for each. Reports in JSON, a line each.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.util.HashMap;
import java.util.Map;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.awscore.client.builder.AwsClientBuilder;
import software.amazon.awssdk.awscore.exception.AwsServiceException;
import software.amazon.awssdk.core.exception.SdkException;
import software.amazon.awssdk.core.sync.RequestBody;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.dynamodb.DynamoDbClient;
import software.amazon.awssdk.services.ec2.Ec2Client;
import software.amazon.awssdk.services.ec2.model.Tag;
import software.amazon.awssdk.services.eks.EksClient;
import software.amazon.awssdk.services.route53.Route53Client;
import software.amazon.awssdk.services.route53.model.Change;
import software.amazon.awssdk.services.route53.model.ResourceRecord;
import software.amazon.awssdk.services.route53.model.ResourceRecordSet;
import software.amazon.awssdk.services.s3.S3Client;
import software.amazon.awssdk.services.sts.StsClient;

public class Clients {
  private static final Map<String, Object> CLIENTS = new HashMap<>();

  private static String given(String name, String otherwise) {
    String value = System.getenv(name);
    return value == null ? otherwise : value;
  }

  @SuppressWarnings("unchecked")
  private static <C> C client(String url, AwsClientBuilder<?, C> builder) {
    String name = builder.getClass().getName() + " " + url;
    return (C)
        CLIENTS.computeIfAbsent(
            name,
            unknown -> {
              var key = AwsBasicCredentials.create(given("TEST_KEY", "ASIAQNZGKIQY56JQ7WML"), given("TEST_SECRET", "secret"));
              builder.credentialsProvider(StaticCredentialsProvider.create(key));
              builder.region(Region.EU_CENTRAL_1).endpointOverride(URI.create(url));
              builder.overrideConfiguration(o -> o.retryStrategy(software.amazon.awssdk.core.retry.RetryMode.STANDARD));
              return builder.build();
            });
  }

  private static void call(String name, String url) {
    var s3 = S3Client.builder().forcePathStyle(true);
    switch (name) {
      case "ec2" -> client(url, Ec2Client.builder()).describeInstances();
      case "ec2_write" ->
          client(url, Ec2Client.builder())
              .createTags(r -> r.resources("i-1").tags(Tag.builder().key("k").value("v").build()));
      case "sts" -> client(url, StsClient.builder()).getCallerIdentity();
      case "dynamodb" -> client(url, DynamoDbClient.builder()).listTables();
      case "eks" -> client(url, EksClient.builder()).describeCluster(r -> r.name("c"));
      case "eks_list" -> client(url, EksClient.builder()).listClusters();
      case "route53" -> client(url, Route53Client.builder()).listHostedZones();
      case "route53_change" -> {
        var record = ResourceRecordSet.builder().name("a.example").type("A").ttl(60L);
        var set = record.resourceRecords(ResourceRecord.builder().value("192.0.2.1").build()).build();
        var change = Change.builder().action("UPSERT").resourceRecordSet(set).build();
        client(url, Route53Client.builder())
            .changeResourceRecordSets(r -> r.hostedZoneId("Z1").changeBatch(b -> b.changes(change)));
      }
      case "s3" -> client(url, s3).getObjectAsBytes(r -> r.bucket("bucket").key("k//..%2F"));
      case "s3_buckets" -> client(url, s3).listBuckets();
      case "s3_put" ->
          client(url, s3).putObject(r -> r.bucket("bucket").key("k"), RequestBody.fromString("x".repeat(100_000)));
      case "s3_head" -> client(url, s3).headObject(r -> r.bucket("bucket").key("k"));
      default -> throw new IllegalArgumentException(name);
    }
  }

  public static void main(String[] unused) throws Exception {
    var lines = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = lines.readLine()) != null; ) {
      String[] words = line.split(" ");
      String error = "";
      int attempts = 0;
      try {
        call(words[0], words[1]);
      } catch (AwsServiceException e) {
        error = e.awsErrorDetails() == null ? e.getMessage() : String.valueOf(e.awsErrorDetails().errorCode());
        error = "null".equals(error) ? "status " + e.statusCode() : error;
        attempts = e.numAttempts() == null ? 0 : e.numAttempts();
      } catch (SdkException e) {
        error = String.valueOf(e);
      }
      String text = error.replaceAll("[\"\\\\\\p{Cntrl}]", " ");
      System.out.printf(
          "{\"ok\": %b, \"error\": \"%s\", \"attempts\": %s}%n",
          error.isEmpty(), text, attempts == 0 ? "null" : String.valueOf(attempts));
    }
  }
}
