package org.apache.flink.connector.file.src.assigners;

import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import java.util.TreeSet;
import org.apache.flink.connector.file.src.FileSourceSplit;

/**
 * Assigns files ordered by name. Flink's class of the same name assigns them in no particular order,
 * so most rows of event-time windows would be late. The table source has no option to choose another
 * assigner, so this class replaces Flink's class in the jar.
 */
public class LocalityAwareSplitAssigner implements FileSplitAssigner {

    private final TreeSet<FileSourceSplit> waiting =
            new TreeSet<>(
                    Comparator.comparing((FileSourceSplit split) -> split.path().toString())
                            .thenComparing(FileSourceSplit::offset)
                            .thenComparing(FileSourceSplit::splitId));

    public LocalityAwareSplitAssigner(Collection<FileSourceSplit> splits) {
        waiting.addAll(splits);
    }

    @Override
    public Optional<FileSourceSplit> getNext(String host) {
        return Optional.ofNullable(waiting.pollFirst());
    }

    @Override
    public void addSplits(Collection<FileSourceSplit> splits) {
        waiting.addAll(splits);
    }

    @Override
    public Collection<FileSourceSplit> remainingSplits() {
        List<FileSourceSplit> left = new ArrayList<>(waiting);
        return left;
    }
}
