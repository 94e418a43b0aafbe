import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * Keyed running sums of K numbers, with an output record at each power of two of a key's count.
 *
 * <p>Exactly-once (v2), two threads, a state store with caching, defaults elsewhere. An output says
 * which input record completed it, so that its way can be timed.
 *
 * <p>Arguments: bootstrap, application id, input, output, "json" or "float32", K, state folder,
 * bytes of cache.
 */
public final class RunningSums implements Processor<byte[], byte[], byte[], byte[]> {
  private static final String STORE = "sums";
  private static final JsonFactory JSON = new JsonFactory();

  private final boolean isJson;
  private final int size;
  private ProcessorContext<byte[], byte[]> context;
  private KeyValueStore<byte[], double[]> store;

  private RunningSums(boolean isJson, int size) {
    this.isJson = isJson;
    this.size = size;
  }

  @Override
  public void init(ProcessorContext<byte[], byte[]> context) {
    this.context = context;
    this.store = context.getStateStore(STORE);
  }

  @Override
  public void process(Record<byte[], byte[]> record) {
    double[] sums = store.get(record.key());
    if (sums == null) {
      sums = new double[size + 1]; // the last one counts
    }
    if (isJson) {
      addJson(record.value(), sums);
    } else {
      addRow(record.value(), sums);
    }
    long count = (long) ++sums[size];
    store.put(record.key(), sums);
    if ((count & (count - 1)) == 0) {
      context.forward(record.withValue(output(sums)));
    }
  }

  private void addRow(byte[] value, double[] sums) {
    ByteBuffer row = ByteBuffer.wrap(value).order(ByteOrder.LITTLE_ENDIAN);
    for (int at = 0; at < size; at++) {
      sums[at] += row.getFloat(4 * at);
    }
  }

  /** Adds the numbers of {"losses": [...]}. */
  private void addJson(byte[] value, double[] sums) {
    try (JsonParser parser = JSON.createParser(value)) {
      while (parser.nextToken() != JsonToken.START_ARRAY) {
        // on to the losses
      }
      for (int at = 0; at < size && parser.nextToken() != JsonToken.END_ARRAY; at++) {
        sums[at] += parser.getFloatValue();
      }
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  /** Partition and offset of the record that completed it, then the sums. */
  private byte[] output(double[] sums) {
    var completedBy = context.recordMetadata().orElseThrow();
    ByteBuffer bytes = ByteBuffer.allocate(8 * (size + 3));
    bytes.putLong(completedBy.partition()).putLong(completedBy.offset());
    bytes.asDoubleBuffer().put(sums);
    return bytes.array();
  }

  private static Serde<double[]> doubles() {
    return Serdes.serdeFrom(
        (topic, numbers) -> {
          ByteBuffer bytes = ByteBuffer.allocate(8 * numbers.length);
          bytes.asDoubleBuffer().put(numbers);
          return bytes.array();
        },
        (topic, bytes) -> {
          double[] numbers = new double[bytes.length / 8];
          ByteBuffer.wrap(bytes).asDoubleBuffer().get(numbers);
          return numbers;
        });
  }

  private static Properties settings(String[] arguments) {
    Properties settings = new Properties();
    settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[1]);
    settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[6]);
    settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, arguments[7]);
    settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
    settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
    return settings;
  }

  public static void main(String[] arguments) {
    boolean isJson = arguments[4].equals("json");
    int size = Integer.parseInt(arguments[5]);
    var bytes = Serdes.ByteArray();
    var store =
        Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore(STORE), bytes, doubles())
            .withCachingEnabled();
    Topology topology = new Topology();
    topology.addSource("input", bytes.deserializer(), bytes.deserializer(), arguments[2]);
    topology.addProcessor("sum", () -> new RunningSums(isJson, size), "input");
    topology.addStateStore(store, "sum");
    topology.addSink("output", arguments[3], bytes.serializer(), bytes.serializer(), "sum");
    KafkaStreams streams = new KafkaStreams(topology, settings(arguments));
    Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
    streams.start();
  }
}
