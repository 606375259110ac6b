import io.kubernetes.client.custom.V1Patch;
import io.kubernetes.client.openapi.models.V1ConfigMap;
import io.kubernetes.client.openapi.models.V1ConfigMapList;
import io.kubernetes.client.openapi.models.V1ObjectMeta;
import io.kubernetes.client.util.Config;
import io.kubernetes.client.util.generic.GenericKubernetesApi;
import io.kubernetes.client.util.generic.KubernetesApiResponse;
import io.kubernetes.client.util.generic.options.ListOptions;
import java.util.ArrayList;
import java.util.Map;

/** The script of the clients in every language, with the official Java client: {@code Script NAMESPACE NAME}. */
public final class Script {
    public static void main(String[] args) throws Exception {
        String namespace = args[0], name = args[1];
        var maps = new GenericKubernetesApi<>(
            V1ConfigMap.class, V1ConfigMapList.class, "", "v1", "configmaps", Config.defaultClient());
        var mine = new ListOptions();
        mine.setFieldSelector("metadata.name=" + name);
        var found = maps.list(namespace, mine).throwsApiException().getObject();
        System.out.println("list " + found.getItems().size());
        var since = new ListOptions();
        since.setFieldSelector(mine.getFieldSelector());
        since.setResourceVersion(found.getMetadata().getResourceVersion());
        var seen = maps.watch(namespace, since);
        var one = new V1ConfigMap().data(Map.of("value", "one"))
            .metadata(new V1ObjectMeta().name(name).namespace(namespace));
        System.out.println("created " + maps.create(one).throwsApiException().getObject().getData().get("value"));
        var two = new V1Patch("{\"data\":{\"value\":\"two\"}}");
        var patched = maps.patch(namespace, name, V1Patch.PATCH_FORMAT_JSON_MERGE_PATCH, two).throwsApiException();
        System.out.println("patched " + patched.getObject().getData().get("value"));
        System.out.println("list " + maps.list(namespace, mine).throwsApiException().getObject().getItems().size());
        System.out.println("create again: " + reason(maps.create(one)));
        System.out.println("get absent: " + reason(maps.get(namespace, name + "-absent")));
        maps.delete(namespace, name).throwsApiException();
        System.out.println("deleted");
        var events = new ArrayList<String>();
        for (var event : seen) {
            events.add(event.type + " " + event.object.getData().get("value"));
            if (event.type.equals("DELETED")) {
                break;
            }
        }
        System.out.println("watch " + String.join(", ", events));
        System.out.println("list " + maps.list(namespace, mine).throwsApiException().getObject().getItems().size());
        System.exit(0);
    }

    private static String reason(KubernetesApiResponse<?> answer) {
        return answer.getHttpStatusCode() + " " + (answer.isSuccess() ? "" : answer.getStatus().getReason());
    }
}
