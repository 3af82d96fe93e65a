package sluicebench;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.JobSubmissionResult;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.core.execution.CheckpointType;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.core.fs.Path;
import org.apache.flink.runtime.checkpoint.CompletedCheckpointStats;
import org.apache.flink.runtime.executiongraph.AccessExecutionGraph;
import org.apache.flink.runtime.executiongraph.AccessExecutionVertex;
import org.apache.flink.runtime.jobgraph.JobGraph;
import org.apache.flink.runtime.jobgraph.SavepointRestoreSettings;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.logical.BigIntType;
import org.apache.flink.table.types.logical.LogicalType;

/**
 * A cluster in one process that runs one job and is told what to do by lines on its input:
 *
 *   rehearse              start the job on an empty folder, and stop it: its classes are loaded
 *   submit [checkpoint]   start the job, from a checkpoint if one is named
 *   await N               wait until N rows were read
 *   checkpoint            take one; answers its size and its path
 *   output                wait for the first result
 *   drain                 end the input: every window fires
 *   cancel                stop, and keep the checkpoints
 *
 * Every answer is one line that starts with "answer".
 */
public class Driver {
    private final Map arguments = new HashMap();
    private final Configuration configuration = new Configuration();
    private MiniCluster cluster;
    private JobID job;
    private long pauses = 0;

    public static void main(String[] args) throws Exception {
        Driver driver = new Driver();
        for (int i = 0; i < args.length; i++) {
            String[] pair = args[i].split("=", 2);
            driver.arguments.put(pair[0], pair[1]);
            if (pair[0].indexOf('.') > 0) {
                driver.configuration.setString(pair[0], pair[1]);
            }
        }
        try {
            driver.start();
            driver.answer("ready");
            BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
            String line;
            while ((line = in.readLine()) != null) {
                String[] words = line.split(" ");
                driver.answer(driver.obey(words[0], words.length > 1 ? words[1] : ""));
            }
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }

    private void start() throws Exception {
        MiniClusterConfiguration.Builder builder = new MiniClusterConfiguration.Builder();
        builder.setConfiguration(configuration);
        builder.setNumTaskManagers(1);
        builder.setNumSlotsPerTaskManager(parallelism());
        cluster = new MiniCluster(builder.build());
        cluster.start();
    }

    private String obey(String command, String argument) throws Exception {
        if (command.equals("rehearse")) {
            rehearse();
        } else if (command.equals("submit")) {
            submit(argument);
        } else if (command.equals("await")) {
            long rows = Long.parseLong(argument);
            while (read() < rows) {
                pause();
            }
        } else if (command.equals("checkpoint")) {
            return checkpoint();
        } else if (command.equals("output")) {
            while (!Steps.hasOutput) {
                pause();
            }
        } else if (command.equals("drain")) {
            cluster.stopWithSavepoint(job, argument, true, SavepointFormatType.NATIVE).get();
        } else if (command.equals("cancel")) {
            cluster.cancelJob(job).get();
            cluster.requestJobResult(job).get();
        } else {
            throw new IllegalArgumentException(command);
        }
        return "";
    }

    private void rehearse() throws Exception {
        Object input = arguments.put("input", text("empty"));
        submit("");
        while (!isRunning()) {
            Thread.sleep(50);
        }
        cluster.cancelJob(job).get();
        cluster.requestJobResult(job).get();
        arguments.put("input", input);
    }

    private boolean isRunning() throws Exception {
        AccessExecutionGraph graph = (AccessExecutionGraph) cluster.getExecutionGraph(job).get();
        for (Object vertex : graph.getAllExecutionVertices()) {
            AccessExecutionVertex one = (AccessExecutionVertex) vertex;
            if (!one.getExecutionState().toString().equals("RUNNING")) {
                return false;
            }
        }
        return true;
    }

    /** The cluster is asked only now and then whether it failed: asking takes time from its job. */
    private void pause() throws Exception {
        Thread.sleep(2);
        if (++pauses % 250 != 0) {
            return;
        }
        if (cluster.getJobStatus(job).get().toString().equals("FAILED")) {
            AccessExecutionGraph graph = (AccessExecutionGraph) cluster.getExecutionGraph(job).get();
            throw new IllegalStateException(graph.getFailureInfo().getExceptionAsString());
        }
    }

    private void submit(String checkpoint) throws Exception {
        StreamExecutionEnvironment environment =
            StreamExecutionEnvironment.getExecutionEnvironment(configuration);
        environment.setParallelism(parallelism());
        environment.getConfig().enableObjectReuse();
        String[] fields = text("fields").split(",");
        FileSource.FileSourceBuilder source =
            FileSource.forRecordStreamFormat(new Rows(fields.length), new Path[] {new Path(text("input"))});
        source.monitorContinuously(Duration.ofMillis(20));
        source.setSplitAssigner(new Rows.InOrder());
        DataStream rows = environment.fromSource(
            source.build(), WatermarkStrategy.noWatermarks(), "rows",
            PrimitiveArrayTypeInfo.LONG_PRIMITIVE_ARRAY_TYPE_INFO).uid("rows");
        if (text("query").isEmpty()) {
            keyed(rows);
        } else {
            query(environment, rows, fields);
        }
        JobGraph graph = environment.getStreamGraph().getJobGraph();
        if (!checkpoint.isEmpty()) {
            graph.setSavepointRestoreSettings(SavepointRestoreSettings.forPath(checkpoint));
        }
        job = ((JobSubmissionResult) cluster.submitJob(graph).get()).getJobID();
    }

    private void keyed(DataStream rows) {
        int keyLongs = Integer.parseInt(text("key.longs"));
        rows.map(new Steps.Count(false), PrimitiveArrayTypeInfo.LONG_PRIMITIVE_ARRAY_TYPE_INFO).uid("count")
            .keyBy(new Steps.Key(keyLongs), keyLongs == 1 ? Types.LONG : Types.STRING)
            .process(new Steps.Aggregate(text("output"), keyLongs),
                Types.TUPLE(new TypeInformation[] {Types.LONG, Types.LONG, Types.LONG})).uid("aggregate")
            .sinkTo(new DiscardingSink()).uid("discard");
    }

    private void query(StreamExecutionEnvironment environment, DataStream rows, String[] fields)
            throws Exception {
        LogicalType[] types = new LogicalType[fields.length];
        for (int i = 0; i < types.length; i++) {
            types[i] = new BigIntType();
        }
        DataStream data = rows.map(new Steps.Count(true), InternalTypeInfo.ofFields(types, fields));
        StreamTableEnvironment tables = StreamTableEnvironment.create(environment);
        Schema schema = Schema.newBuilder()
            .columnByExpression("event_time", "TO_TIMESTAMP_LTZ(at_ms, 3)")
            .watermark("event_time", "event_time - INTERVAL '1' SECOND")
            .build();
        tables.createTemporaryView("events", data, schema);
        String sql = new String(Files.readAllBytes(Paths.get(text("query"))));
        tables.toChangelogStream(tables.sqlQuery(sql))
            .map(new Steps.Changes(text("output")), Types.GENERIC(Object.class))
            .sinkTo(new DiscardingSink());
    }

    private String checkpoint() throws Exception {
        while (!isRunning()) {
            Thread.sleep(50);  // The source may be at its end before RocksDB is open.
        }
        long id = ((Long) cluster.triggerCheckpoint(job, CheckpointType.CONFIGURED).get()).longValue();
        while (true) {
            AccessExecutionGraph graph = (AccessExecutionGraph) cluster.getExecutionGraph(job).get();
            CompletedCheckpointStats done =
                graph.getCheckpointStatsSnapshot().getHistory().getLatestCompletedCheckpoint();
            if (done != null && done.getCheckpointId() >= id) {
                return done.getCheckpointedSize() + " " + done.getExternalPath();
            }
            pause();
        }
    }

    private static long read() {
        long sum = 0;
        for (int i = 0; i < Steps.READ.length(); i++) {
            sum += Steps.READ.get(i);
        }
        return sum;
    }

    private int parallelism() {
        return Integer.parseInt(text("parallelism"));
    }

    private String text(String name) {
        return (String) arguments.get(name);
    }

    private static void answer(String text) {
        System.out.println("answer " + text);
        System.out.flush();
    }
}
