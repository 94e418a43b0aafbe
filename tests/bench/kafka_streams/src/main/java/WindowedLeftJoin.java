import java.io.ByteArrayOutputStream;
import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.state.BuiltInDslStoreSuppliers;

/**
 * A windowed left join of requests with their outcomes, both keyed by the request's id.
 *
 * <p>Exactly-once (v2), two threads, defaults elsewhere. An outcome belongs to a request if it is
 * younger than the request less the grace, and not younger than the request plus the window.
 *
 * <p>Arguments: bootstrap, application id, requests, outcomes, output, milliseconds of the window,
 * of the grace, "memory" or "rocksdb", state folder.
 */
public final class WindowedLeftJoin {
  private static final byte[] NOTHING = "null".getBytes();

  private WindowedLeftJoin() {}

  /** Both contents as one text of JSON; nothing is read of them. */
  private static byte[] joined(byte[] request, byte[] outcome) {
    var text = new ByteArrayOutputStream(request.length + 40);
    text.writeBytes("{\"request\":".getBytes());
    text.writeBytes(request);
    text.writeBytes(",\"outcome\":".getBytes());
    text.writeBytes(outcome == null ? NOTHING : outcome);
    text.write('}');
    return text.toByteArray();
  }

  private static Properties settings(String[] arguments) {
    Properties settings = new Properties();
    settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[1]);
    settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[8]);
    settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
    settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
    settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
    settings.put(
        StreamsConfig.DSL_STORE_SUPPLIERS_CLASS_CONFIG,
        arguments[7].equals("memory")
            ? BuiltInDslStoreSuppliers.InMemoryDslStoreSuppliers.class
            : BuiltInDslStoreSuppliers.RocksDBDslStoreSuppliers.class);
    return settings;
  }

  public static void main(String[] arguments) {
    var window = Duration.ofMillis(Long.parseLong(arguments[5]));
    var grace = Duration.ofMillis(Long.parseLong(arguments[6]));
    var bytes = Serdes.ByteArray();
    var builder = new StreamsBuilder();
    var consumed = Consumed.with(bytes, bytes);
    var requests = builder.stream(arguments[2], consumed);
    var outcomes = builder.stream(arguments[3], consumed);
    requests
        .leftJoin(
            outcomes,
            WindowedLeftJoin::joined,
            JoinWindows.ofTimeDifferenceAndGrace(window, grace).before(grace),
            StreamJoined.with(bytes, bytes, bytes))
        .to(arguments[4], Produced.with(bytes, bytes));
    var streams = new KafkaStreams(builder.build(settings(arguments)), settings(arguments));
    Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
    streams.start();
  }
}
