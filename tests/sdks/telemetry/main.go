// An OpenTelemetry Collector that passes on what it takes, and programs that are traced by OpenTelemetry's SDK:
// `telemetry collector CONFIG`, `telemetry upstream LISTEN COLLECTOR` and `telemetry client URL COLLECTOR`.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/otlphttpexporter"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
)

func factories() (otelcol.Factories, error) {
	receivers, err := otelcol.MakeFactoryMap[receiver.Factory](otlpreceiver.NewFactory())
	if err != nil {
		return otelcol.Factories{}, err
	}
	exporters, err := otelcol.MakeFactoryMap[exporter.Factory](otlphttpexporter.NewFactory())
	return otelcol.Factories{Receivers: receivers, Exporters: exporters, Telemetry: otelconftelemetry.NewFactory()}, err
}

func collector(config string) error {
	settings := otelcol.CollectorSettings{
		BuildInfo: component.BuildInfo{Command: "collector"},
		Factories: factories,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{ResolverSettings: confmap.ResolverSettings{
			URIs:              []string{config},
			ProviderFactories: []confmap.ProviderFactory{fileprovider.NewFactory()},
		}},
	}
	made, err := otelcol.NewCollector(settings)
	if err != nil {
		return err
	}
	return made.Run(context.Background())
}

// traced gives a provider whose spans of a service are at the collector before their end returns.
func traced(service, collector string) (*trace.TracerProvider, error) {
	made, err := otlptracehttp.New(context.Background(), otlptracehttp.WithEndpointURL(collector+"/v1/traces"))
	if err != nil {
		return nil, err
	}
	name := resource.NewSchemaless(attribute.String("service.name", service))
	otel.SetTextMapPropagator(propagation.TraceContext{})
	return trace.NewTracerProvider(trace.WithSyncer(made), trace.WithResource(name)), nil
}

func upstream(listen, collector string) error {
	provider, err := traced("upstream", collector)
	if err != nil {
		return err
	}
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, r.Header.Get("Traceparent")) })
	return http.ListenAndServe(listen, otelhttp.NewHandler(answer, "answer", otelhttp.WithTracerProvider(provider)))
}

func client(url, collector string) error {
	provider, err := traced("client", collector)
	if err != nil {
		return err
	}
	transport := otelhttp.NewTransport(http.DefaultTransport, otelhttp.WithTracerProvider(provider))
	response, err := (&http.Client{Transport: transport}).Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(os.Stdout, response.Body)
	return err
}

func main() {
	var err error
	switch arguments := os.Args[2:]; os.Args[1] {
	case "collector":
		err = collector(arguments[0])
	case "upstream":
		err = upstream(arguments[0], arguments[1])
	case "client":
		err = client(arguments[0], arguments[1])
	}
	if err != nil {
		log.Fatal(err)
	}
}
