import io.fabric8.kubernetes.api.model.ConfigMapBuilder;
import io.fabric8.kubernetes.client.Config;
import io.fabric8.kubernetes.client.ConfigBuilder;
import io.fabric8.kubernetes.client.KubernetesClientBuilder;
import io.fabric8.kubernetes.client.KubernetesClientException;
import java.util.List;

/** Does with fabric8 what {@code controller upload} does: {@code Upload URL SIZE:RUNS...}. */
public final class Upload {
    private static Object first;

    public static void main(String[] args) {
        // HTTP/1.1, and no retry that hides an error.
        Config config = new ConfigBuilder(Config.empty()).withMasterUrl(args[0]).withOauthToken("wrong").withHttp2Disable(true)
            .withCaCertFile(System.getenv("CA_FILE")).withRequestRetryBackoffLimit(0).build();
        var client = new KubernetesClientBuilder().withConfig(config).build();
        var maps = client.configMaps().inNamespace("default");
        for (String what : List.of(args).subList(1, args.length)) {
            int size = Integer.parseInt(what.split(":")[0]), runs = Integer.parseInt(what.split(":")[1]);
            var map = new ConfigMapBuilder().withNewMetadata().withName("upload").endMetadata()
                .addToData("body", "x".repeat(size)).build();
            int answered = 0, followed = 0;
            first = null;
            for (int run = 0; run < runs; run++) {
                answered += refused("", () -> maps.resource(map).create());
                followed += refused("next: ", () -> maps.withName("absent").get());
            }
            System.out.println(size + " " + runs + " " + answered + " " + followed + " " + first);
        }
        System.exit(0);
    }

    private static int refused(String what, Runnable call) {
        try {
            call.run();
            first = first == null ? what + "not refused" : first;
        } catch (KubernetesClientException error) {
            if (error.getCode() == 401 || error.getCode() == 403) {
                return 1;
            }
            Throwable cause = error;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            first = first == null ? what + cause : first;
        }
        return 0;
    }
}
