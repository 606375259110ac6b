// Makes calls with the AWS SDK for Java 2 and the HTTP client that the argument names: a line `CALL URL` on stdin for each.
// Reports in JSON, a line each.

import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.URI;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletionException;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;
import org.apache.http.HttpHost;
import org.apache.http.conn.ssl.SSLConnectionSocketFactory;
import org.apache.http.protocol.HttpContext;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.awscore.client.builder.AwsClientBuilder;
import software.amazon.awssdk.awscore.exception.AwsServiceException;
import software.amazon.awssdk.core.async.AsyncRequestBody;
import software.amazon.awssdk.core.async.AsyncResponseTransformer;
import software.amazon.awssdk.core.client.builder.SdkAsyncClientBuilder;
import software.amazon.awssdk.core.client.builder.SdkSyncClientBuilder;
import software.amazon.awssdk.core.exception.SdkException;
import software.amazon.awssdk.core.sync.RequestBody;
import software.amazon.awssdk.http.SdkHttpClient;
import software.amazon.awssdk.http.apache.ApacheHttpClient;
import software.amazon.awssdk.http.nio.netty.NettyNioAsyncHttpClient;
import software.amazon.awssdk.http.urlconnection.UrlConnectionHttpClient;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.autoscaling.AutoScalingClient;
import software.amazon.awssdk.services.cloudwatch.CloudWatchClient;
import software.amazon.awssdk.services.dynamodb.DynamoDbClient;
import software.amazon.awssdk.services.ec2.Ec2AsyncClient;
import software.amazon.awssdk.services.ec2.Ec2Client;
import software.amazon.awssdk.services.ec2.model.Tag;
import software.amazon.awssdk.services.eks.EksClient;
import software.amazon.awssdk.services.elasticloadbalancingv2.ElasticLoadBalancingV2Client;
import software.amazon.awssdk.services.iam.IamClient;
import software.amazon.awssdk.services.route53.Route53Client;
import software.amazon.awssdk.services.route53.model.Change;
import software.amazon.awssdk.services.route53.model.ResourceRecord;
import software.amazon.awssdk.services.route53.model.ResourceRecordSet;
import software.amazon.awssdk.services.s3.S3AsyncClient;
import software.amazon.awssdk.services.s3.S3Client;
import software.amazon.awssdk.services.sts.StsClient;

public class Clients {
  private static final Map<String, Object> CLIENTS = new HashMap<>();
  private static final SdkHttpClient TO_LOOPBACK = toLoopback();
  private static String http = "";

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
              // Each as it is by itself; there is no default where several are on the class path.
              if (builder instanceof SdkAsyncClientBuilder<?, ?> async) {
                async.httpClientBuilder(NettyNioAsyncHttpClient.builder());
              } else if (builder instanceof SdkSyncClientBuilder<?, ?> sync) {
                if (TO_LOOPBACK != null) sync.httpClient(TO_LOOPBACK);
                else if (http.equals("url-connection")) sync.httpClientBuilder(UrlConnectionHttpClient.builder());
                else sync.httpClientBuilder(ApacheHttpClient.builder());
              }
              return builder.build();
            });
  }

  /** Leads AWS's names to loopback, as a pod's hosts file with the gate's address would; null where they lead where they do. */
  private static SdkHttpClient toLoopback() {
    String port = System.getenv("TEST_ALIASES");
    if (port == null) return null;
    try (var file = new FileInputStream(System.getenv("TEST_CA"))) {
      var store = KeyStore.getInstance(KeyStore.getDefaultType());
      store.load(null, null);
      store.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(file));
      var trusts = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
      trusts.init(store);
      var tls = SSLContext.getInstance("TLS");
      tls.init(null, trusts.getTrustManagers(), null);
      var gate = new InetSocketAddress("127.0.0.1", Integer.parseInt(port));
      var sockets =
          new SSLConnectionSocketFactory(tls) {
            @Override
            public Socket connectSocket(
                int timeout, Socket socket, HttpHost host, InetSocketAddress to, InetSocketAddress from, HttpContext context)
                throws IOException {
              return super.connectSocket(timeout, socket, host, gate, from, context);
            }
          };
      var loopback = new InetAddress[] {gate.getAddress()};
      return ApacheHttpClient.builder().socketFactory(sockets).dnsResolver(name -> loopback).build();
    } catch (IOException | GeneralSecurityException e) {
      throw new IllegalStateException(e);
    }
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
      case "s3_upload" ->
          client(url, s3).putObject(r -> r.bucket("bucket").key("k"), RequestBody.fromBytes(new byte[5 << 20]));
      case "s3_head" -> client(url, s3).headObject(r -> r.bucket("bucket").key("k"));
      case "elbv2" -> client(url, ElasticLoadBalancingV2Client.builder()).describeLoadBalancers();
      case "autoscaling" -> client(url, AutoScalingClient.builder()).describeAutoScalingGroups();
      case "iam" -> client(url, IamClient.builder()).listUsers();
      case "cloudwatch" -> client(url, CloudWatchClient.builder()).listMetrics();
      default -> throw new IllegalArgumentException(name);
    }
  }

  private static void callByNetty(String name, String url) {
    var s3 = S3AsyncClient.builder().forcePathStyle(true);
    var called =
        switch (name) {
          case "ec2_write" ->
              client(url, Ec2AsyncClient.builder())
                  .createTags(r -> r.resources("i-1").tags(Tag.builder().key("k").value("v").build()));
          case "s3" -> client(url, s3).getObject(r -> r.bucket("bucket").key("k//..%2F"), AsyncResponseTransformer.toBytes());
          case "s3_upload" ->
              client(url, s3).putObject(r -> r.bucket("bucket").key("k"), AsyncRequestBody.fromBytes(new byte[5 << 20]));
          default -> throw new IllegalArgumentException(name);
        };
    try {
      called.join();
    } catch (CompletionException e) {
      throw e.getCause() instanceof SdkException error ? error : e;
    }
  }

  public static void main(String[] arguments) throws Exception {
    http = arguments[0].replace("java-v2-", "");
    var lines = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = lines.readLine()) != null; ) {
      String[] words = line.split(" ");
      String error = "";
      int attempts = 0;
      try {
        if (http.equals("netty")) callByNetty(words[0], words[1]);
        else call(words[0], words[1]);
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
