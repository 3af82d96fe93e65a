package sluicebench;

import java.io.BufferedOutputStream;
import java.io.DataOutputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.Arrays;
import java.util.concurrent.atomic.AtomicLongArray;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.functions.KeySelector;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.types.Row;
import org.apache.flink.types.RowKind;
import org.apache.flink.util.Collector;

/** What the jobs are made of. */
public class Steps {
    /** Of a row that asks for a key's state instead of changing it. */
    public static final long QUESTION = Long.MIN_VALUE;

    public static final int UUID_LENGTH = 36;

    /** Rows that left each subtask of the source; the driver looks at them. */
    public static final AtomicLongArray READ = new AtomicLongArray(64);

    /** Whether any result has come out. */
    public static volatile boolean hasOutput = false;

    /** Counts, and makes a row of Flink's tables if *forTable*. */
    public static class Count extends RichMapFunction {
        private final boolean forTable;
        private transient int subtask;
        private transient long count;

        public Count(boolean forTable) {
            this.forTable = forTable;
        }

        public void open(OpenContext context) {
            subtask = getRuntimeContext().getTaskInfo().getIndexOfThisSubtask();
        }

        public Object map(Object value) {
            READ.lazySet(subtask, ++count);
            if (!forTable) {
                return value;
            }
            long[] row = (long[]) value;
            GenericRowData data = new GenericRowData(row.length);
            for (int i = 0; i < row.length; i++) {
                data.setField(i, Long.valueOf(row[i]));
            }
            return data;
        }
    }

    /** The first long, or the text of a UUID that fills more of them. */
    public static class Key implements KeySelector {
        private final int longs;

        public Key(int longs) {
            this.longs = longs;
        }

        public Object getKey(Object value) {
            long[] row = (long[]) value;
            if (longs == 1) {
                return Long.valueOf(row[0]);
            }
            byte[] text = new byte[UUID_LENGTH];
            for (int i = 0; i < text.length; i++) {
                text[i] = (byte) (row[i >> 3] >>> (56 - 8 * (i & 7)));
            }
            return new String(text, StandardCharsets.ISO_8859_1);
        }
    }

    /** Count, sum and largest value per key; every update is emitted. */
    public static class Aggregate extends KeyedProcessFunction {
        private final String folder;
        private final int keyLongs;
        private transient ValueState state;
        private transient Writer writer;

        public Aggregate(String folder, int keyLongs) {
            this.folder = folder;
            this.keyLongs = keyLongs;
        }

        public void open(OpenContext context) {
            // Not long[]: a restore reads unbuffered, and the length of an array byte by byte.
            state = getRuntimeContext().getState(new ValueStateDescriptor(
                "aggregate", Types.TUPLE(new TypeInformation[] {Types.LONG, Types.LONG, Types.LONG})));
        }

        public void processElement(Object value, KeyedProcessFunction.Context context, Collector out)
                throws Exception {
            long[] row = (long[]) value;
            Tuple3 found = (Tuple3) state.value();
            long count = found == null ? 0 : ((Long) found.f0).longValue();
            long sum = found == null ? 0 : ((Long) found.f1).longValue();
            long max = found == null ? Long.MIN_VALUE : ((Long) found.f2).longValue();
            long given = row[keyLongs];
            if (given == QUESTION) {
                if (writer == null) {
                    writer = new Writer(folder, getRuntimeContext().getTaskInfo().getIndexOfThisSubtask());
                }
                long[] answer = Arrays.copyOf(row, keyLongs + 3);
                answer[keyLongs] = count;
                answer[keyLongs + 1] = sum;
                answer[keyLongs + 2] = max;
                writer.write(answer);
                return;
            }
            Tuple3 changed = new Tuple3(
                Long.valueOf(count + 1), Long.valueOf(sum + given), Long.valueOf(Math.max(max, given)));
            state.update(changed);
            out.collect(changed);
            hasOutput = true;
        }

        public void close() throws Exception {
            if (writer != null) {
                writer.close();
            }
        }
    }

    /** Writes the rows that a query's changelog adds; the last one of a key is its result. */
    public static class Changes extends RichMapFunction {
        private final String folder;
        private transient Writer writer;
        private transient long[] values;

        public Changes(String folder) {
            this.folder = folder;
        }

        public void open(OpenContext context) throws IOException {
            writer = new Writer(folder, getRuntimeContext().getTaskInfo().getIndexOfThisSubtask());
        }

        public Object map(Object value) throws IOException {
            Row row = (Row) value;
            if (row.getKind() == RowKind.UPDATE_BEFORE || row.getKind() == RowKind.DELETE) {
                return row;
            }
            if (values == null) {
                values = new long[row.getArity()];
            }
            for (int i = 0; i < values.length; i++) {
                values[i] = number(row.getField(i));
            }
            writer.write(values);
            hasOutput = true;
            return row;
        }

        public void close() throws Exception {
            if (writer != null) {
                writer.close();
            }
        }

        private static long number(Object value) {
            if (value instanceof LocalDateTime) {
                return ((LocalDateTime) value).toInstant(ZoneOffset.UTC).toEpochMilli();
            }
            if (value instanceof Instant) {
                return ((Instant) value).toEpochMilli();
            }
            return ((Number) value).longValue();
        }
    }

    /** Rows of longs, big-endian. */
    public static class Writer {
        private final DataOutputStream out;

        Writer(String folder, int subtask) throws IOException {
            out = new DataOutputStream(new BufferedOutputStream(
                new FileOutputStream(folder + "/" + subtask + ".bin", true), 1 << 18));
        }

        void write(long[] values) throws IOException {
            for (int i = 0; i < values.length; i++) {
                out.writeLong(values[i]);
            }
        }

        void close() throws IOException {
            out.close();
        }
    }
}
