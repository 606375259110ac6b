// Calls with Java's HTTP clients as they are: `Plain CLIENT`, and a line `CALL URL` on stdin for each. Reports in JSON, a line each.

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.HttpURLConnection;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import okhttp3.OkHttpClient;
import okhttp3.Request;
import okhttp3.RequestBody;

public class Plain {
  private static final HttpClient JDK = HttpClient.newHttpClient();
  private static final OkHttpClient OKHTTP = new OkHttpClient();

  private static int okhttp(String method, String url, byte[] body) throws IOException {
    var request = new Request.Builder().url(url).method(method, body == null ? null : RequestBody.create(body)).build();
    try (var answer = OKHTTP.newCall(request).execute()) {
      answer.body().bytes();
      return answer.code();
    }
  }

  private static int jdk(String method, String url, byte[] body) throws IOException, InterruptedException {
    var sent = body == null ? HttpRequest.BodyPublishers.noBody() : HttpRequest.BodyPublishers.ofByteArray(body);
    var request = HttpRequest.newBuilder(URI.create(url)).method(method, sent).build();
    return JDK.send(request, HttpResponse.BodyHandlers.ofByteArray()).statusCode();
  }

  private static int connection(String method, String url, byte[] body) throws IOException {
    var connection = (HttpURLConnection) URI.create(url).toURL().openConnection();
    connection.setRequestMethod(method);
    if (body != null) {
      connection.setDoOutput(true);
      connection.getOutputStream().write(body);
    }
    int status = connection.getResponseCode();
    try (var answer = status < 400 ? connection.getInputStream() : connection.getErrorStream()) {
      if (answer != null) answer.readAllBytes();
    }
    return status;
  }

  private static int call(String client, String name, String url) throws IOException, InterruptedException {
    String method = name.equals("read") ? "GET" : name.equals("write") ? "POST" : "PUT";
    byte[] body = name.equals("read") ? null : name.equals("write") ? new byte[2] : new byte[5 << 20];
    url += name.equals("upload") ? "/things/1" : "/things";
    return switch (client) {
      case "OkHttp" -> okhttp(method, url, body);
      case "JDK-HttpClient" -> jdk(method, url, body);
      default -> connection(method, url, body);
    };
  }

  public static void main(String[] arguments) throws Exception {
    var lines = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = lines.readLine()) != null; ) {
      String[] words = line.split(" ");
      String error = "";
      try {
        int status = call(arguments[0], words[0], words[1]);
        error = status < 400 ? "" : "status " + status;
      } catch (IOException e) {
        error = String.valueOf(e);
      }
      String text = error.replaceAll("[\"\\\\\\p{Cntrl}]", " ");
      System.out.printf("{\"ok\": %b, \"error\": \"%s\", \"attempts\": null}%n", error.isEmpty(), text);
    }
  }
}
